"""A demo of three projects' engines behind one address, for a simulated day."""
