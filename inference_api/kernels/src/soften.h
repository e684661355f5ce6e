// The cap that some models put on their logits.
#pragma once

#include <cmath>
#include <cstdint>

namespace hearth {
namespace {

inline void soften(float* logits, int64_t count, float softcap) {
  for (int64_t i = 0; i < count; ++i) {
    logits[i] = softcap * std::tanh(logits[i] / softcap);
  }
}

}  // namespace
}  // namespace hearth
