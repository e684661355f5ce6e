// 128-bit registers of ARM: the instructions of every 64-bit processor, and the two extensions that
// multiply bytes. 32 registers hold the sums of a tile, but not the totals of a panel, which stay
// in the first level cache.
#pragma once

#include <arm_neon.h>

#include <cstring>

#include "layout.h"

namespace hearth {
namespace {

struct Registers128 {
  using Floats = float32x4_t;
  using Bytes = uint8x16_t;
  static constexpr int kLanes = 4;
  static constexpr int kVectors = 2;
  static constexpr int kVectorsOfOneRow = 4;
  static constexpr int kMaxRows = 4;
  static constexpr int kFloatVectors = 4;
  static constexpr int kMaxFloatRows = 6;

  static Floats zero() { return vdupq_n_f32(0.0f); }
  static Floats set(float value) { return vdupq_n_f32(value); }
  static Floats load(const float* values) { return vld1q_f32(values); }
  static void store(float* out, Floats values) { vst1q_f32(out, values); }
  static Floats multiply(Floats a, float b) { return vmulq_n_f32(a, b); }
  static Floats multiply_add(Floats a, Floats b, Floats c) { return vfmaq_f32(c, a, b); }

  static Floats halves(const uint16_t* values) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(values)));
  }

  // Returns the numbers in one place of each pair.
  static Floats bfloat16s(const uint16_t (*pairs)[kPair], int place) {
    const uint32x4_t bits = vreinterpretq_u32_u16(vld1q_u16(*pairs));
    return vreinterpretq_f32_u32(place == 0 ? vshlq_n_u32(bits, 16)
                                            : vandq_u32(bits, vdupq_n_u32(0xffff0000)));
  }

  static int8x16_t broadcast(const int8_t* quad) {
    int32_t bytes;
    std::memcpy(&bytes, quad, sizeof bytes);
    return vreinterpretq_s8_s32(vdupq_n_s32(bytes));
  }

  static uint8x16_t load(const uint8_t (*quads)[kQuad], int vector) {
    return vld1q_u8(quads[vector * kLanes]);
  }

  static void store(uint8_t (*quads)[kQuad], int vector, uint8x16_t bytes) {
    vst1q_u8(quads[vector * kLanes], bytes);
  }

  static uint8x16_t joined(uint8x16_t a, uint8x16_t b) { return vorrq_u8(a, b); }

  // Returns (byte >> shift) & mask for every byte; a negative shift is to the left.
  static uint8x16_t field(uint8x16_t bytes, int shift, int mask) {
    const uint8x16_t shifted = vshlq_u8(bytes, vdupq_n_s8(static_cast<int8_t>(-shift)));
    return vandq_u8(shifted, vdupq_n_u8(static_cast<uint8_t>(mask)));
  }

  static uint8x16_t looked_up(uint8x16_t places, const uint8_t (&table)[16]) {
    return vqtbl1q_u8(vld1q_u8(table), places);
  }
};

// Weights that a `Product` multiplies by signed quads.
template <class Product>
struct SignedFormats : Registers128 {
  using Sums = typename Product::Sums;

  // Weights lose their offset when they are loaded, so that no sum has to be corrected.
  template <int kOffset>
  struct Offset {
    using Weights = int8x16_t;

    static Sums start(int32_t) { return Product::zero(); }
    static Sums dot(const Sums& sums, Weights weights, int8x16_t quads) {
      return Product::dot(sums, weights, quads);
    }
    static Floats finish(const Sums& sums, int32_t) { return vcvtq_f32_s32(Product::sum(sums)); }
    static Weights taken(uint8x16_t values) {
      return vreinterpretq_s8_u8(vsubq_u8(values, vdupq_n_u8(kOffset)));
    }
  };

  // Values of so many bits with an offset.
  template <int kBits, int kOffset>
  using Small = Offset<kOffset>;
};

// Adds two products of bytes in 16 bits: 2 * 127 * 127 is below 2^15. A sum has half a quad.
struct NeonProduct {
  struct Sums {
    int32x4_t lower;  // sums of two outputs
    int32x4_t upper;  // sums of the next two
  };
  static Sums zero() { return {vdupq_n_s32(0), vdupq_n_s32(0)}; }
  static Sums dot(const Sums& sums, int8x16_t weights, int8x16_t quads) {
    const int16x8_t lower = vmull_s8(vget_low_s8(weights), vget_low_s8(quads));
    return {vpadalq_s16(sums.lower, lower), vpadalq_s16(sums.upper, vmull_high_s8(weights, quads))};
  }
  static int32x4_t sum(const Sums& sums) { return vpaddq_s32(sums.lower, sums.upper); }
};

using Neon = SignedFormats<NeonProduct>;

#if defined(__ARM_FEATURE_DOTPROD)
struct DotProduct {
  using Sums = int32x4_t;
  static Sums zero() { return vdupq_n_s32(0); }
  static Sums dot(Sums sums, int8x16_t weights, int8x16_t quads) {
    return vdotq_s32(sums, weights, quads);
  }
  static int32x4_t sum(Sums sums) { return sums; }
};

using DotProd = SignedFormats<DotProduct>;
#endif

#if defined(__ARM_FEATURE_MATMUL_INT8)
struct I8mm : Registers128 {
  using Sums = int32x4_t;

  // Weights with an offset. A sum starts at minus the offset times the activations' sum.
  template <int kOffset>
  struct Offset {
    using Weights = uint8x16_t;

    static Sums start(int32_t negative_sum) { return vdupq_n_s32(kOffset * negative_sum); }
    static Sums dot(Sums sums, Weights weights, int8x16_t quads) {
      return vusdotq_s32(sums, weights, quads);
    }
    static Floats finish(Sums sums, int32_t) { return vcvtq_f32_s32(sums); }
    static Weights taken(uint8x16_t values) { return values; }
  };

  // Values of so many bits with an offset.
  template <int kBits, int kOffset>
  using Small = Offset<kOffset>;
};
#endif

}  // namespace
}  // namespace hearth
