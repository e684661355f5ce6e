// Draws a token from a row of logits, as engine/sampler.py says: by inverse CDF over the tokens
// that top-k, top-p and min-p leave, the likeliest first and the lower id first among equals.
#pragma once

#include <cstdint>

#include "interface.h"
#include "kernels.h"

namespace hearth {

// Thread-safe.
int64_t draw(const Kernels& kernels, const float* logits, int64_t vocab, const HearthDraw& how);

}  // namespace hearth
