// Activations to bytes, group by group. Plain loops that compilers vectorise, with the same result
// in every variant.
#pragma once

#include "half.h"
#include "kernels.h"

namespace hearth {
namespace {

constexpr uint32_t kMagnitudeMask = 0x7fffffff;
constexpr uint32_t kInfinityBits = 0x7f800000;
constexpr uint32_t kNanBits = 0x7fc00000;
constexpr float kSmallestAbsMax = 0x1p-100f;  // below it, 127 / maximum would overflow: it is zero
// Adding 1.5 * 2^23 rounds to the nearest integer, which then is in the low bits of the sum.
constexpr float kRounder = 0x1.8p23f;
constexpr int32_t kRounderBits = 0x4b400000;

// Bits of the largest magnitude. As integers magnitudes order like floats, and NaN comes last.
inline uint32_t largest_magnitude_bits(const float* x) {
  uint32_t largest = 0;
  for (int i = 0; i < kGroup; ++i) {
    const uint32_t magnitude = bits_from_float(x[i]) & kMagnitudeMask;
    largest = magnitude > largest ? magnitude : largest;
  }
  return largest;
}

inline void quantise_group(const float* x, ActivationGroup& group) {
  const uint32_t largest_bits = largest_magnitude_bits(x);
  const float largest = float_from_bits(largest_bits);
  const bool is_finite = largest_bits < kInfinityBits;
  const bool is_scaled = is_finite && largest >= kSmallestAbsMax;
  const float inverse = is_scaled ? kInt8Max / largest : 0.0f;
  int32_t sum = 0;
  for (int i = 0; i < kGroup; ++i) {
    const float scaled = is_finite ? x[i] * inverse : 0.0f;
    const int32_t value = static_cast<int32_t>(bits_from_float(scaled + kRounder)) - kRounderBits;
    group.values[i] = static_cast<int8_t>(value);
    sum += value;
  }
  group.negative_sum = -sum;
  group.scale = is_finite ? (is_scaled ? largest / kInt8Max : 0.0f) : float_from_bits(kNanBits);
}

// Group `index` of a row, in the form that meets weights of so many bits.
inline void prepare_group(Bits bits, const float* x, void* row, int64_t index) {
  if (is_quantised(bits)) {
    quantise_group(x, static_cast<ActivationGroup*>(row)[index]);
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
