// The cap that some models put on their logits.
#pragma once

#include <cstdint>

#include "activation.h"

namespace hearth {
namespace {

// Caps logits. tanh x = 2 / (1 + exp(-2 x)) - 1; the standard libraries' functions are not used,
// because their last bits differ. NaN stays NaN.
inline void soften(float* logits, int64_t count, float softcap) {
  for (int64_t i = 0; i < count; ++i) {
    const float x = logits[i] / softcap;
    const float tanh = 2.0f * sigmoid<Scalar>(2.0f * x) - 1.0f;
    logits[i] = __builtin_isnan(x) ? x : softcap * tanh;
  }
}

}  // namespace
}  // namespace hearth
