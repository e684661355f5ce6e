"""Engines of three projects behind one address, for a day."""
