"""Accelerators that each server could run on, sized and priced. Pure."""
