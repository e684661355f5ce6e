"""Benches that check predictions against real loads and simulated servers."""
