"""A cluster on one machine, for demonstration and tests."""
