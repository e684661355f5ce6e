// Blocks to weights.
#pragma once

#include "half.h"
#include "k_quants.h"
#include "kernels.h"

namespace hearth {
namespace {

inline void unpack_block(const Float32Block& block, int64_t lane, float* weights) {
  for (int i = 0; i < kGroup; ++i) {
    weights[i] = block.values[i][lane];
  }
}

inline void unpack_block(const BFloat16Block& block, int64_t lane, float* weights) {
  for (int i = 0; i < kGroup; ++i) {
    weights[i] = bfloat16_to_float(block.values[i][lane]);
  }
}

inline void unpack_block(const Int8Block& block, int64_t lane, float* weights) {
  const float scale = half_to_float(block.scales[lane]);
  for (int i = 0; i < kGroup; ++i) {
    const int value = block.values[i / kQuad][lane][i % kQuad] - kInt8Offset;
    weights[i] = static_cast<float>(value) * scale;
  }
}

inline void unpack_block(const Int4Block& block, int64_t lane, float* weights) {
  const float scale = half_to_float(block.scales[lane]);
  for (int i = 0; i < kGroup; ++i) {
    const int quad = i / kQuad;
    const int pair = block.pairs[quad / 2][lane][i % kQuad];
    const int value = (quad % 2 == 0 ? pair & 0x0f : pair >> 4) - kInt4Offset;
    weights[i] = static_cast<float>(value) * scale;
  }
}

inline float scale_of(const Q6KBlock& block, int group, int64_t lane) {
  return half_to_float(block.scale_units[lane]) * static_cast<float>(block.scales[group][lane]);
}

inline float minimum_of(const Q6KBlock&, int, int64_t) { return 0.0f; }

template <class Block>
float scale_of(const Block& block, int group, int64_t lane) {
  return half_to_float(block.scales.scale_units[lane]) *
         static_cast<float>(scale_of(block.scales, group, lane));
}

template <class Block>
float minimum_of(const Block& block, int group, int64_t lane) {
  return half_to_float(block.scales.minimum_units[lane]) *
         static_cast<float>(minimum_of(block.scales, group, lane));
}

// Superblocks.
template <class Block>
void unpack_block(const Block& block, int64_t lane, float* weights) {
  constexpr int kInputs = Block::kInputs / Block::kScales;  // of a group
  for (int i = 0; i < Block::kInputs; ++i) {
    const int group = i / kInputs;
    const auto value = static_cast<float>(value_of(block.groups[group], lane, i % kInputs));
    weights[i] = value * scale_of(block, group, lane) - minimum_of(block, group, lane);
  }
}

template <class Block>
void unpack_row(const void* packed, int64_t num_groups, int64_t output, float* weights) {
  const int64_t num_blocks = num_groups * kGroup / Block::kInputs;
  const auto* blocks = static_cast<const Block*>(packed) + output / kPanel * num_blocks;
  for (int64_t index = 0; index < num_blocks; ++index) {
    unpack_block(blocks[index], output % kPanel, weights + index * Block::kInputs);
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
    case Bits::kQ4K:
      return unpack_row<Q4KBlock>(packed, num_groups, output, weights);
    case Bits::kQ5K:
      return unpack_row<Q5KBlock>(packed, num_groups, output, weights);
    case Bits::kQ6K:
      return unpack_row<Q6KBlock>(packed, num_groups, output, weights);
    default:
      return unpack_row<Int4Block>(packed, num_groups, output, weights);
  }
}

}  // namespace
}  // namespace hearth
