"""Demos of whole systems on one machine: clusters under changing load, and a split model."""
