// Half precision and bfloat16 by integer arithmetic: exact, and the same on every processor.
#pragma once

#include <cstdint>
#include <cstring>

namespace hearth {
namespace {

inline float float_from_bits(uint32_t bits) {
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

inline uint32_t bits_from_float(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, sizeof bits);
  return bits;
}

inline float bfloat16_to_float(uint16_t bits) {
  return float_from_bits(static_cast<uint32_t>(bits) << 16);
}

// Returns the nearest bfloat16, ties to even; NaN stays NaN.
inline uint16_t float_to_bfloat16(float value) {
  const uint32_t bits = bits_from_float(value);
  const uint32_t rounded = bits + 0x7fff + (bits >> 16 & 1);
  const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
  return static_cast<uint16_t>((is_nan ? bits | 0x400000 : rounded) >> 16);
}

inline float half_to_float(uint16_t half) {
  constexpr float kExponentShift = 0x1p112f;  // from half's exponent bias, 15, to float's, 127
  const uint32_t sign = static_cast<uint32_t>(half & 0x8000) << 16;
  const uint32_t magnitude = static_cast<uint32_t>(half & 0x7fff) << 13;
  if (magnitude >= 0x0f800000) {  // infinite or NaN
    return float_from_bits(sign | 0x7f800000 | magnitude);
  }
  // A multiplication also normalises numbers that are subnormal in half precision.
  return float_from_bits(sign | bits_from_float(float_from_bits(magnitude) * kExponentShift));
}

// Returns the nearest half, ties to even; infinite from 65520 on.
inline uint16_t float_to_half(float value) {
  constexpr uint32_t kSmallestNormal = 113u << 23;  // 2^-14
  const uint32_t sign = bits_from_float(value) >> 16 & 0x8000;
  const uint32_t magnitude = bits_from_float(value) & 0x7fffffff;
  if (magnitude >= 0x477ff000) {
    return static_cast<uint16_t>(sign | 0x7c00);
  }
  if (magnitude < kSmallestNormal) {  // adding 0.5 puts the half's bits at the end of the sum
    const float shifted = float_from_bits(magnitude) + 0.5f;
    return static_cast<uint16_t>(sign | (bits_from_float(shifted) - bits_from_float(0.5f)));
  }
  const uint32_t is_odd = magnitude >> 13 & 1;
  return static_cast<uint16_t>(sign | ((magnitude - (112u << 23) + 0xfff + is_odd) >> 13));
}

}  // namespace
}  // namespace hearth
