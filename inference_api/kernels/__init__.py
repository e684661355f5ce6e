"""Decode steps on the CPU, in C++ behind a plain C interface.

`build` compiles the library, and `library` loads it and calls it with numpy arrays. `src/` has the
C++ sources: begin with `layout.h` and `linear.h`, then read `step.cpp`, which runs a whole step.
"""
