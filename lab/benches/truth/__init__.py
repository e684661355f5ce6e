"""Plans held against the truth: real loads, and simulated servers."""
