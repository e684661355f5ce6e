"""Checks of the kernels beside their tests: sanitizers, other processors, clang's tools."""
