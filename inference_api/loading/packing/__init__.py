"""Weights as the kernels want them, packed once into files."""
