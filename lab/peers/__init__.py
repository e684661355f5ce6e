"""Public servers and engines to compare with, each in an environment of its own."""
