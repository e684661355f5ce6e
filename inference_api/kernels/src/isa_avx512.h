// 512-bit registers and vpdpbusd: Intel from Ice Lake server on, AMD from Zen 4 on.
#pragma once

#include <immintrin.h>

#include <cstring>

#include "layout.h"

namespace hearth {
namespace {

struct Avx512Vnni {
  using Floats = __m512;
  using Sums = __m512i;
  static constexpr int kLanes = 16;
  static constexpr int kVectors = 2;
  static constexpr int kVectorsOfOneRow = 2;
  static constexpr int kMaxRows = 6;  // 12 sums and 12 totals leave 8 registers for the rest
  static constexpr int kFloatVectors = 2;
  static constexpr int kMaxFloatRows = 8;

  static Floats zero() { return _mm512_setzero_ps(); }
  static Floats set(float value) { return _mm512_set1_ps(value); }
  static Floats load(const float* values) { return _mm512_loadu_ps(values); }
  static void store(float* out, Floats values) { _mm512_storeu_ps(out, values); }
  static Floats multiply(Floats a, float b) { return _mm512_mul_ps(a, _mm512_set1_ps(b)); }
  static Floats multiply_add(Floats a, Floats b, Floats c) { return _mm512_fmadd_ps(a, b, c); }

  static Floats halves(const uint16_t* values) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(values)));
  }

  static Floats bfloat16s(const uint16_t* values) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(values));
    return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(bits), 16));
  }

  static __m512i broadcast(const int8_t* quad) {
    int32_t bytes;
    std::memcpy(&bytes, quad, sizeof bytes);
    return _mm512_set1_epi32(bytes);
  }

  static __m512i load(const uint8_t (*quads)[kQuad], int vector) {
    return _mm512_loadu_si512(quads + vector * kLanes);
  }

  // Weights with an offset w + 2^n: the sum starts at minus the offset times the activations' sum.
  template <int kOffsetBits>
  struct Offset {
    using Weights = __m512i;

    static Sums start(int32_t negative_sum) {
      return _mm512_slli_epi32(_mm512_set1_epi32(negative_sum), kOffsetBits);
    }
    static Sums dot(Sums sums, Weights weights, __m512i quads) {
      return _mm512_dpbusd_epi32(sums, weights, quads);
    }
    static Floats finish(Sums sums, int32_t) { return _mm512_cvtepi32_ps(sums); }
  };

  struct Int8 : Offset<7> {
    using Block = Int8Block;
    static_assert(kInt8Offset == 1 << 7);

    static __m512i weights(const Block& block, int quad, int vector) {
      return load(block.values[quad], vector);
    }
  };

  struct Int4 : Offset<3> {
    using Block = Int4Block;
    static_assert(kInt4Offset == 1 << 3);

    static __m512i weights(const Block& block, int quad, int vector) {
      const __m512i pairs = load(block.pairs[quad / 2], vector);
      const __m512i shifted = quad % 2 == 0 ? pairs : _mm512_srli_epi16(pairs, 4);
      return _mm512_and_si512(shifted, _mm512_set1_epi8(0x0f));
    }
  };
};

}  // namespace
}  // namespace hearth
