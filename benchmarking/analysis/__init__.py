"""Figures from records: latencies, curves, intervals, fits, predictions. Pure."""
