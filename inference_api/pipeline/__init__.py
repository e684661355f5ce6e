"""One model over several processes."""
