"""The command line, `python -m benchmarking`."""
