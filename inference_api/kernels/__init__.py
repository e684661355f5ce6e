"""Decode steps on the CPU, in C++ behind a plain C interface.

`build` compiles the library, `library` loads it and calls it with numpy arrays, `src/`
is the C++: begin with `layout.h` and `linear.h`, then `step.cpp`, which puts all of it together.
"""
