// The matrix product of many rows with smmla, which multiplies two rows by two outputs over eight
// inputs: twice as much as a dot product. Results have the bits of the other products.
#pragma once

#include "isa_neon.h"
#include "linear_tiles.h"

namespace hearth {
namespace {

constexpr int kPairs = 4;    // pairs of rows that are multiplied at once
constexpr int kOutputs = 8;  // outputs that are multiplied at once: two vectors of sums for a row
constexpr int kOutputPairs = kOutputs / 2;
constexpr int kInputs = 2 * kQuad;  // inputs that one instruction multiplies
constexpr int kVectors = kOutputs / Registers128::kLanes;

// Returns inputs from `first` on for two rows of a tile.
inline int8x16_t row_pair(const ActivationTile& rows, int first_row, int first) {
  return vcombine_s8(vld1_s8(rows.values[first_row] + first),
                     vld1_s8(rows.values[first_row + 1] + first));
}

// Adds eight rows times one group of eight outputs, from vector `first` of the panel on, to `out`.
template <class Block>
void multiply_pairs(const Block& block, int first, const ActivationTile& rows, int first_row,
                    float (*out)[kPanel]) {
  using Format = Whole<Neon, Block>;
  int32x4_t sums[kPairs][kOutputPairs];
#pragma GCC unroll 4
  for (auto& pair : sums) {
#pragma GCC unroll 4
    for (auto& sum : pair) {
      sum = vdupq_n_s32(0);
    }
  }
#pragma GCC unroll 4
  for (int quad = 0; quad < kQuads; quad += 2) {
    int8x16_t weights[kOutputPairs];
#pragma GCC unroll 2
    for (int vector = 0; vector < kVectors; ++vector) {
      const auto even = vreinterpretq_s32_s8(Format::weights(block, quad, first + vector));
      const auto odd = vreinterpretq_s32_s8(Format::weights(block, quad + 1, first + vector));
      weights[2 * vector] = vreinterpretq_s8_s32(vzip1q_s32(even, odd));
      weights[2 * vector + 1] = vreinterpretq_s8_s32(vzip2q_s32(even, odd));
    }
#pragma GCC unroll 4
    for (int pair = 0; pair < kPairs; ++pair) {
      const int8x16_t activations = row_pair(rows, first_row + 2 * pair, quad / 2 * kInputs);
#pragma GCC unroll 4
      for (int outputs = 0; outputs < kOutputPairs; ++outputs) {
        sums[pair][outputs] = vmmlaq_s32(sums[pair][outputs], activations, weights[outputs]);
      }
    }
  }
#pragma GCC unroll 2
  for (int vector = 0; vector < kVectors; ++vector) {
    const int output = (first + vector) * Registers128::kLanes;
    const float32x4_t scales = Registers128::halves(block.scales + output);
#pragma GCC unroll 8
    for (int row = 0; row < 2 * kPairs; ++row) {
      const auto lower = vreinterpretq_s64_s32(sums[row / 2][2 * vector]);
      const auto upper = vreinterpretq_s64_s32(sums[row / 2][2 * vector + 1]);
      const auto sum = row % 2 == 0 ? vtrn1q_s64(lower, upper) : vtrn2q_s64(lower, upper);
      const float32x4_t scale = vmulq_n_f32(scales, rows.scales[first_row + row]);
      float* const total = out[row] + output;
      vst1q_f32(total,
                vfmaq_f32(vld1q_f32(total), vcvtq_f32_s32(vreinterpretq_s32_s64(sum)), scale));
    }
  }
}

template <class Block>
void multiply_rows(const Block* blocks, const Block*, int64_t num_groups,
                   const ActivationTile* rows, int64_t count, float (*results)[kPanel]) {
  std::memset(results, 0, static_cast<size_t>(num_tiles(count)) * kTileRows * sizeof results[0]);
  for (int64_t group = 0; group < num_groups; ++group) {
    for (int64_t row = 0; row < count; row += 2 * kPairs) {
      const ActivationTile& tile = rows[row / kTileRows * num_groups + group];
      for (int first = 0; first < kPanel / Registers128::kLanes; first += kVectors) {
        multiply_pairs(blocks[group], first, tile, static_cast<int>(row % kTileRows),
                       results + row);
      }
    }
  }
}

inline void fill_tiles(Bits, const void* rows, int64_t num_rows, int64_t num_groups, void* tiles) {
  fill_byte_tiles(rows, num_rows, num_groups, tiles);
}

inline int64_t min_tile_rows(Bits bits) {
  return bits == Bits::kInt8 || bits == Bits::kInt4 ? 2 * kPairs : INT64_MAX;
}

inline void linear_panels_by_pairs(const LinearCall& call, int64_t first, int64_t end) {
  if (call.tiles == nullptr) {
    linear_panels<I8mm, Simd128, &kI8mmForms>(call, first, end);
  } else if (call.bits == Bits::kInt8) {
    tile_panels<Simd128, Int8Block, multiply_rows>(call, first, end);
  } else {
    tile_panels<Simd128, Int4Block, multiply_rows>(call, first, end);
  }
}

}  // namespace
}  // namespace hearth
