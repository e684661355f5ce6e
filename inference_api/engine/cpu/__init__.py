"""Steps by the kernels."""
