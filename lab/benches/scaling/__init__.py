"""A day of a cluster's controller."""
