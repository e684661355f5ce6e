// Blocks to weights.
#pragma once

#include "half.h"
#include "kernels.h"

namespace hearth {
namespace {

inline void unpack_group(const Float32Block& block, int64_t lane, float* weights) {
  for (int i = 0; i < kGroup; ++i) {
    weights[i] = block.values[i][lane];
  }
}

inline void unpack_group(const BFloat16Block& block, int64_t lane, float* weights) {
  for (int i = 0; i < kGroup; ++i) {
    weights[i] = bfloat16_to_float(block.values[i][lane]);
  }
}

inline void unpack_group(const Int8Block& block, int64_t lane, float* weights) {
  const float scale = half_to_float(block.scales[lane]);
  for (int i = 0; i < kGroup; ++i) {
    const int value = block.values[i / kQuad][lane][i % kQuad] - kInt8Offset;
    weights[i] = static_cast<float>(value) * scale;
  }
}

inline void unpack_group(const Int4Block& block, int64_t lane, float* weights) {
  const float scale = half_to_float(block.scales[lane]);
  for (int i = 0; i < kGroup; ++i) {
    const int quad = i / kQuad;
    const int pair = block.pairs[quad / 2][lane][i % kQuad];
    const int value = (quad % 2 == 0 ? pair & 0x0f : pair >> 4) - kInt4Offset;
    weights[i] = static_cast<float>(value) * scale;
  }
}

template <class Block>
void unpack_row(const void* packed, int64_t num_groups, int64_t output, float* weights) {
  const auto* blocks = static_cast<const Block*>(packed) + output / kPanel * num_groups;
  for (int64_t group = 0; group < num_groups; ++group) {
    unpack_group(blocks[group], output % kPanel, weights + group * kGroup);
  }
}

// The weights of one output of a packed matrix.
inline void unpack_row(Bits bits, const void* packed, int64_t num_groups, int64_t output,
                       float* weights) {
  switch (bits) {
    case Bits::kFloat32:
      return unpack_row<Float32Block>(packed, num_groups, output, weights);
    case Bits::kBFloat16:
      return unpack_row<BFloat16Block>(packed, num_groups, output, weights);
    case Bits::kInt8:
      return unpack_row<Int8Block>(packed, num_groups, output, weights);
    default:
      return unpack_row<Int4Block>(packed, num_groups, output, weights);
  }
}

}  // namespace
}  // namespace hearth
