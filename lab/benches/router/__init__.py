"""Which expert a message goes to."""
