"""A cluster on one machine, to see and to test."""
