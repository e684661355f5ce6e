// Converts activations to bytes or bfloat16, group by group, and keys and values to bytes. Plain
// loops, which compilers vectorise, with the same result in every variant.
#pragma once

#include "half.h"
#include "kernels.h"

namespace hearth {
namespace {

constexpr uint32_t kMagnitudeMask = 0x7fffffff;
constexpr uint32_t kInfinityBits = 0x7f800000;
constexpr uint32_t kNanBits = 0x7fc00000;
constexpr float kSmallestAbsMax = 0x1p-100f;  // less counts as 0: 127 / maximum would overflow
// Adding 1.5 * 2^23 rounds to the nearest integer, and puts it into the low bits of the sum.
constexpr float kRounder = 0x1.8p23f;
constexpr int32_t kRounderBits = 0x4b400000;

// Returns the bits of the largest magnitude. As integers, magnitudes have floats' order, NaN last.
inline uint32_t largest_magnitude_bits(const float* x, int64_t count) {
  uint32_t largest = 0;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t magnitude = bits_from_float(x[i]) & kMagnitudeMask;
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest;
}

// The scale between floats and bytes: x[i] = scale * values[i].
struct ByteScale {
  float scale;    // NaN if one of the floats is not finite
  float inverse;  // 0 in this case, and if all floats are zero
};

inline ByteScale byte_scale(const float* x, int64_t count) {
  const uint32_t largest_bits = largest_magnitude_bits(x, count);
  const float largest = float_from_bits(largest_bits);
  if (largest_bits >= kInfinityBits) {
    return {float_from_bits(kNanBits), 0.0f};
  }
  if (largest < kSmallestAbsMax) {
    return {0.0f, 0.0f};
  }
  return {largest / kInt8Max, kInt8Max / largest};
}

inline int32_t to_byte(float x, float inverse) {
  const float scaled = inverse == 0.0f ? 0.0f : x * inverse;  // 0 even if not finite
  return static_cast<int32_t>(bits_from_float(scaled + kRounder)) - kRounderBits;
}

inline void quantise_group(const float* x, ActivationGroup& group) {
  const ByteScale scale = byte_scale(x, kGroup);
  constexpr int kHalf = kGroup / 2;
  int32_t values[kGroup];  // loops that do one thing each are vectorised best
  for (int i = 0; i < kGroup; ++i) {
    values[i] = to_byte(x[i], scale.inverse);
  }
  for (int i = 0; i < kGroup; ++i) {
    group.values[i] = static_cast<int8_t>(values[i]);
  }
  int32_t sums[2] = {};
  for (int half = 0; half < 2; ++half) {
    for (int i = 0; i < kHalf; ++i) {
      sums[half] += values[half * kHalf + i];
    }
  }
  group.negative_sum = -sums[0] - sums[1];
  group.negative_half_sums[0] = -sums[0];
  group.negative_half_sums[1] = -sums[1];
  group.scale = scale.scale;
  group.scaled_negative_sum = scale.scale * static_cast<float>(group.negative_sum);
}

#if defined(__AVX512BF16__)
using BFloat16Group = PairGroup;
inline void round_group(const float* x, PairGroup& group) {
  uint32_t words[kGroup / kPair];  // a loop over these is vectorised
  for (int i = 0; i < kGroup / kPair; ++i) {
    const uint32_t first = float_to_bfloat16(x[kPair * i]);
    words[i] = first << 16 | float_to_bfloat16(x[kPair * i + 1]);
  }
  std::memcpy(group.pairs, words, sizeof group.pairs);
}
#else
using BFloat16Group = FloatGroup;
inline void round_group(const float* x, FloatGroup& group) {
  for (int i = 0; i < kGroup; ++i) {
    group.values[i] = bfloat16_to_float(float_to_bfloat16(x[i]));
  }
}
#endif

// Writes group `index` of a row in the form that weights of `bits` are multiplied by.
inline void prepare_group(Bits bits, const float* x, void* row, int64_t index) {
  if (is_quantised(bits)) {
    quantise_group(x, static_cast<ActivationGroup*>(row)[index]);
  } else if (bits == Bits::kBFloat16) {
    round_group(x, static_cast<BFloat16Group*>(row)[index]);
  } else {
    std::memcpy(static_cast<FloatGroup*>(row)[index].values, x, sizeof(FloatGroup));
  }
}

inline void prepare_row(Bits bits, const float* x, int64_t num_groups, void* row) {
  for (int64_t group = 0; group < num_groups; ++group) {
    prepare_group(bits, x + group * kGroup, row, group);
  }
}

}  // namespace
}  // namespace hearth
