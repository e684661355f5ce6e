// The largest of some numbers, in order.
#pragma once

#include <cstdint>

namespace hearth {
namespace {

// Finds the `num_ranks` largest of `logits`, best first, and the lower index first among equals.
// Indices are different and in range even if logits are NaN.
inline void find_largest(const float* logits, int64_t count, int64_t num_ranks, int64_t* best) {
  int64_t found = 0;
  for (int64_t token = 0; token < count; ++token) {
    if (found == num_ranks && !(logits[token] > logits[best[found - 1]])) {
      continue;
    }
    int64_t place = found < num_ranks ? found++ : found - 1;
    for (; place > 0 && logits[token] > logits[best[place - 1]]; --place) {
      best[place] = best[place - 1];
    }
    best[place] = token;
  }
}

}  // namespace
}  // namespace hearth
