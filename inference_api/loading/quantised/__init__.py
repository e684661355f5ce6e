"""Quantised safetensors checkpoints."""
