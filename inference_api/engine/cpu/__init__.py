"""Model steps on the CPU, by the C++ kernels."""
