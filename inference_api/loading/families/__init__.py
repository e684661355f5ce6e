"""Families of models: how each names its fields and tensors."""
