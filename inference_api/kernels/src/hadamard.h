// Rotations that spread the values of a few dimensions over all dimensions of a head, so that bytes
// and 4 bits lose less. With keys and queries rotated alike, scores stay equal.
#pragma once

#include <cstdint>

namespace hearth {
namespace {

// Returns the number of dimensions that are rotated together: the largest power of two that divides
// the size of keys, and of the part of them that may be values.
constexpr int64_t rotated_dims(int64_t key_dim, int64_t value_dim) {
  const int64_t both = key_dim | value_dim;
  return both & -both;
}

// Multiplies every `dims` of `count` numbers by the Walsh-Hadamard matrix of 1 and -1. Doing so
// twice multiplies numbers by `dims`, which is a power of two and thus exact.
inline void rotate(float* x, int64_t count, int64_t dims) {
  for (int64_t half = dims / 2; half > 0; half /= 2) {
    for (int64_t first = 0; first < count; first += 2 * half) {
      for (int64_t i = first; i < first + half; ++i) {
        const float sum = x[i] + x[i + half];
        x[i + half] = x[i] - x[i + half];
        x[i] = sum;
      }
    }
  }
}

}  // namespace
}  // namespace hearth
