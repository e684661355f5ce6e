"""One HTML page about a run, and its pictures."""
