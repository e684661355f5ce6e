"""Makers of models: the embedded one, its experts, random weights to measure with, GGUF files."""
