"""Steps by torch."""
