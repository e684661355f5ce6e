// Packs weights into blocks, to the same bytes in every variant: sums are kept per lane, in order.
#pragma once

#include "half.h"
#include "kernels.h"
#include "quantise.h"

namespace hearth {
namespace {

// Eight floats, by a language extension of GCC and Clang: in one register if it is wide enough.
constexpr int kNumLanes = 8;
using Lanes = float __attribute__((vector_size(kNumLanes * sizeof(float))));

constexpr float kLargestFloat = 0x1.fffffep127f;
constexpr float kLargestBFloat16 = 0x1.fep127f;
constexpr float kLargestScale = 65504.0f;  // the largest half precision number
constexpr int kLeastInt4Ratio = 3;         // least ratio of a group's largest weight to its scale

inline int clamp(int value, int low, int high) {
  return value < low ? low : (value > high ? high : value);
}

inline int round_to_int(float value) {  // for magnitudes below 2^22
  return static_cast<int>(bits_from_float(value + kRounder)) - kRounderBits;
}

inline float read_weight(SourceType type, const void* weights, int64_t index) {
  switch (type) {
    case SourceType::kFloat16:
      return half_to_float(static_cast<const uint16_t*>(weights)[index]);
    case SourceType::kBFloat16:
      return bfloat16_to_float(static_cast<const uint16_t*>(weights)[index]);
    default:
      return static_cast<const float*>(weights)[index];
  }
}

// Returns the smallest half that is not below `value`. A scale that is rounded down would cut off
// the largest weight.
inline uint16_t half_not_below(float value) {
  const uint16_t half = float_to_half(value);
  return half_to_float(half) < value ? static_cast<uint16_t>(half + 1) : half;
}

inline void pack_group(const float* weights, int lane, Int8Block& block) {
  const float largest = float_from_bits(largest_magnitude_bits(weights, kGroup));
  const uint16_t scale_bits = half_not_below(largest / kInt8Max);
  const float scale = half_to_float(scale_bits);
  for (int i = 0; i < kGroup; ++i) {
    const float scaled = scale > 0.0f ? weights[i] / scale : 0.0f;
    const int value = clamp(round_to_int(scaled), -kInt8Max, kInt8Max);
    block.values[i / kQuad][lane][i % kQuad] = static_cast<uint8_t>(value + kInt8Offset);
  }
  block.scales[lane] = scale_bits;
}

inline float sum_of(const Lanes& lanes) {
  return ((lanes[0] + lanes[4]) + (lanes[1] + lanes[5])) +
         ((lanes[2] + lanes[6]) + (lanes[3] + lanes[7]));
}

// How well values = round(weights * inverse) describe the weights, with the best scale for these
// values. Errors of large weights count more, by the square of the weight: by least squares the
// scale is s = (w^2 w . v) / (w^2 v . v), and the error falls by (w^2 w . v)^2 / (w^2 v . v), which
// is what a search has to maximise.
struct Fit {
  float scale;
  float gain;
};

// `unit` is the factor that makes the largest weight 1, so that no square of a weight is too small.
inline Fit fit_int4(const float* weights, float unit, float inverse) {
  const Lanes low = Lanes{} - kInt4Offset;
  const Lanes high = Lanes{} + kInt4Max;
  Lanes products = {};
  Lanes squares = {};
  for (int i = 0; i < kGroup; i += kNumLanes) {
    Lanes values;
    std::memcpy(&values, weights + i, sizeof values);
    const Lanes rounded = values * inverse + kRounder - kRounder;
    const Lanes bounded = rounded < low ? low : (rounded > high ? high : rounded);
    const Lanes importance = values * unit * (values * unit);
    products += importance * values * bounded;
    squares += importance * bounded * bounded;
  }
  const float product = sum_of(products);
  const float square = sum_of(squares);
  if (square == 0.0f) {
    return {0.0f, 0.0f};
  }
  return {product / square, product * (product / square)};
}

// Returns the best of a grid of scales. There is one more value below zero than above, so the sign
// of the scale is part of the search.
inline float search_int4_scale(const float* weights) {
  constexpr float kFirst = 6.0f;  // the value that the largest weight is mapped to
  constexpr float kStep = 0.25f;
  constexpr int kCandidates = 13;  // up to 9
  const float largest = float_from_bits(largest_magnitude_bits(weights, kGroup));
  if (largest < kSmallestAbsMax) {
    return 0.0f;
  }
  Fit best{0.0f, 0.0f};
  for (int candidate = 0; candidate < kCandidates; ++candidate) {
    const float inverse = (kFirst + kStep * static_cast<float>(candidate)) / largest;
    const Fit positive = fit_int4(weights, 1.0f / largest, inverse);
    const Fit negative = fit_int4(weights, 1.0f / largest, -inverse);
    best = positive.gain > best.gain ? positive : best;
    best = negative.gain > best.gain ? negative : best;
  }
  return best.scale;
}

inline void pack_group(const float* weights, int lane, Int4Block& block) {
  const uint16_t scale_bits = float_to_half(search_int4_scale(weights));
  const float scale = half_to_float(scale_bits);
  for (int i = 0; i < kGroup; ++i) {
    const float scaled = scale != 0.0f ? weights[i] / scale : 0.0f;
    // The bound keeps round_to_int in its range if a tiny scale was rounded to fewer bits.
    const float bounded = scaled > 64.0f ? 64.0f : (scaled < -64.0f ? -64.0f : scaled);
    const int value = clamp(round_to_int(bounded), -kInt4Offset, kInt4Max) + kInt4Offset;
    const int quad = i / kQuad;
    uint8_t& pair = block.pairs[quad / 2][lane][i % kQuad];
    pair = static_cast<uint8_t>(quad % 2 == 0 ? (pair & 0xf0) | value : (pair & 0x0f) | value << 4);
  }
  block.scales[lane] = scale_bits;
}

inline void pack_group(const float* weights, int lane, Float32Block& block) {
  for (int i = 0; i < kGroup; ++i) {
    block.values[i][lane] = weights[i];
  }
}

inline void pack_group(const float* weights, int lane, BFloat16Block& block) {
  for (int i = 0; i < kGroup; ++i) {
    block.pairs[i / kPair][lane][place_in_pair(i)] = float_to_bfloat16(weights[i]);
  }
}

// Packs a group. `largest` is the largest magnitude that a weight may have.
template <class Block>
bool pack_row_into(SourceType type, const void* weights, int64_t num_groups, int lane, void* to,
                   float largest) {
  auto* blocks = static_cast<Block*>(to);
  for (int64_t group = 0; group < num_groups; ++group) {
    float values[kGroup];
    for (int i = 0; i < kGroup; ++i) {
      values[i] = read_weight(type, weights, group * kGroup + i);
    }
    const uint32_t largest_bits = largest_magnitude_bits(values, kGroup);
    if (largest_bits >= kInfinityBits || float_from_bits(largest_bits) > largest) {
      return false;
    }
    pack_group(values, lane, blocks[group]);
  }
  return true;
}

inline bool pack_row(Bits bits, SourceType type, const void* weights, int64_t num_groups, int lane,
                     void* blocks) {
  constexpr float kLargestInt8 = kLargestScale * kInt8Max;
  constexpr float kLargestInt4 = kLargestScale * kLeastInt4Ratio;
  switch (bits) {
    case Bits::kFloat32:
      return pack_row_into<Float32Block>(type, weights, num_groups, lane, blocks, kLargestFloat);
    case Bits::kBFloat16:
      return pack_row_into<BFloat16Block>(type, weights, num_groups, lane, blocks,
                                          kLargestBFloat16);
    case Bits::kInt8:
      return pack_row_into<Int8Block>(type, weights, num_groups, lane, blocks, kLargestInt8);
    default:
      return pack_row_into<Int4Block>(type, weights, num_groups, lane, blocks, kLargestInt4);
  }
}

}  // namespace
}  // namespace hearth
