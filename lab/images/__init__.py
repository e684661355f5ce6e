"""Builds and starts the images of the Dockerfile without a container engine."""
