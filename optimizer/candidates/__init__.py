"""Sizes and prices the accelerators that each server could run on. Pure."""
