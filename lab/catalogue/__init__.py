"""Fits the calibration of the optimizer's catalogue to published measurements."""
