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
  using Bytes = __m512i;
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

  // Returns the numbers in one place of each pair.
  static Floats bfloat16s(const uint16_t (*pairs)[kPair], int place) {
    const __m512i bits = _mm512_loadu_si512(pairs);
    const __m512i high = _mm512_set1_epi32(-0x10000);
    return _mm512_castsi512_ps(place == 0 ? _mm512_slli_epi32(bits, 16)
                                          : _mm512_and_si512(bits, high));
  }

  // Broadcasts a quad of bytes, or a pair.
  static __m512i broadcast(const void* quad) {
    int32_t bytes;
    std::memcpy(&bytes, quad, sizeof bytes);
    return _mm512_set1_epi32(bytes);
  }

  static __m512i load(const uint8_t (*quads)[kQuad], int vector) {
    return _mm512_loadu_si512(quads + vector * kLanes);
  }

  static void store(uint8_t (*quads)[kQuad], int vector, __m512i bytes) {
    _mm512_storeu_si512(quads + vector * kLanes, bytes);
  }

  static __m512i joined(__m512i a, __m512i b) { return _mm512_or_si512(a, b); }

  // Returns (byte >> shift) & mask for every byte; a negative shift is to the left.
  static __m512i field(__m512i bytes, int shift, int mask) {
    const __m512i shifted =
        shift < 0 ? _mm512_slli_epi16(bytes, -shift) : _mm512_srli_epi16(bytes, shift);
    return _mm512_and_si512(shifted, _mm512_set1_epi8(static_cast<char>(mask)));
  }

  static __m512i looked_up(__m512i places, const uint8_t (&table)[16]) {
    const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
    return _mm512_shuffle_epi8(_mm512_broadcast_i32x4(values), places);
  }

  // Weights with an offset. A sum starts at minus the offset times the activations' sum.
  template <int kOffset>
  struct Offset {
    using Weights = __m512i;

    static Sums start(int32_t negative_sum) {
      return _mm512_mullo_epi32(_mm512_set1_epi32(negative_sum), _mm512_set1_epi32(kOffset));
    }
    static Sums dot(Sums sums, Weights weights, __m512i quads) {
      return _mm512_dpbusd_epi32(sums, weights, quads);
    }
    static Floats finish(Sums sums, int32_t) { return _mm512_cvtepi32_ps(sums); }
    static Weights taken(__m512i values) { return values; }
  };

  // Values of kBits bits with an offset.
  template <int kBits, int kOffset>
  using Small = Offset<kOffset>;
};

#if defined(__AVX512BF16__)
// The same with vdpbf16ps: Intel from Sapphire Rapids on, AMD from Zen 4 on.
struct Avx512Bf16 : Avx512Vnni {
  struct Pairs {
    using Block = BFloat16Block;
    static constexpr int kInputs = kPair;

    static __m512bh weights(const Block& block, int input, int vector) {
      return as_pairs(_mm512_loadu_si512(block.pairs[input / kPair] + vector * kLanes));
    }
    static __m512bh activations(const PairGroup& x, int input) {
      return as_pairs(broadcast(x.pairs[input / kPair]));
    }
    static Floats add_product(__m512bh weights, __m512bh x, Floats total) {
      return _mm512_dpbf16_ps(total, weights, x);
    }

   private:
    static __m512bh as_pairs(__m512i bits) {
      __m512bh pairs;
      std::memcpy(&pairs, &bits, sizeof pairs);
      return pairs;
    }
  };
};
#endif

}  // namespace
}  // namespace hearth
