// 256-bit registers: AVX2 with FMA and F16C (Intel from Haswell and AMD from Excavator on), and
// AVX-VNNI (Intel's cores from Alder Lake on).
#pragma once

#include <immintrin.h>

#include <cstring>

#include "layout.h"

namespace hearth {
namespace {

// The common part of both. 16 registers do not also hold the totals, which stay in the first level
// cache, where a group touches each of them once.
struct Registers256 {
  using Floats = __m256;
  using Sums = __m256i;
  using Bytes = __m256i;
  static constexpr int kLanes = 8;
  static constexpr int kFloatVectors = 2;
  static constexpr int kMaxFloatRows = 6;

  static Floats zero() { return _mm256_setzero_ps(); }
  static Floats set(float value) { return _mm256_set1_ps(value); }
  static Floats load(const float* values) { return _mm256_loadu_ps(values); }
  static void store(float* out, Floats values) { _mm256_storeu_ps(out, values); }
  static Floats multiply(Floats a, float b) { return _mm256_mul_ps(a, _mm256_set1_ps(b)); }
  static Floats multiply_add(Floats a, Floats b, Floats c) { return _mm256_fmadd_ps(a, b, c); }

  static Floats halves(const uint16_t* values) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(values)));
  }

  // Returns the numbers in one place of each pair; without a mask, to save registers.
  static Floats bfloat16s(const uint16_t (*pairs)[kPair], int place) {
    const __m256i bits = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(pairs));
    const __m256i low = place == 0 ? bits : _mm256_srli_epi32(bits, 16);
    return _mm256_castsi256_ps(_mm256_slli_epi32(low, 16));
  }

  static __m256i broadcast(const int8_t* quad) {
    int32_t bytes;
    std::memcpy(&bytes, quad, sizeof bytes);
    return _mm256_set1_epi32(bytes);
  }

  static __m256i load(const uint8_t (*quads)[kQuad], int vector) {
    return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(quads + vector * kLanes));
  }

  static void store(uint8_t (*quads)[kQuad], int vector, __m256i bytes) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(quads + vector * kLanes), bytes);
  }

  static __m256i joined(__m256i a, __m256i b) { return _mm256_or_si256(a, b); }

  // Returns (byte >> shift) & mask for every byte; a negative shift is to the left.
  static __m256i field(__m256i bytes, int shift, int mask) {
    const __m256i shifted =
        shift < 0 ? _mm256_slli_epi16(bytes, -shift) : _mm256_srli_epi16(bytes, shift);
    return _mm256_and_si256(shifted, _mm256_set1_epi8(static_cast<char>(mask)));
  }

  static __m256i looked_up(__m256i places, const uint8_t (&table)[16]) {
    const __m128i values = _mm_loadu_si128(reinterpret_cast<const __m128i*>(table));
    return _mm256_shuffle_epi8(_mm256_broadcastsi128_si256(values), places);
  }
};

struct Avx2 : Registers256 {
  static constexpr int kVectors = 1;
  static constexpr int kVectorsOfOneRow = 4;  // a whole panel, which is read line by line
  static constexpr int kMaxRows = 6;
  // For formats with runs, whose weights are in registers, too.
  static constexpr int kVectorsOfRuns = 2;
  static constexpr int kMaxRowsOfRuns = 4;

  // Otherwise GCC turns the chain of additions into a tree, which has more leaves than registers.
  static Sums kept(Sums sums) {
    __asm__("" : "+x"(sums));
    return sums;
  }

  // vpmaddubsw adds two products in 16 bits, and saturates with unsigned values of 8 bits. So the
  // weight's sign is moved to the activation: 2 * 127 * 127 is below 2^15.
  struct Wide {
    struct Weights {
      __m256i signs;
      __m256i magnitudes;
    };

    static Sums start(int32_t) { return _mm256_setzero_si256(); }
    static Weights taken(__m256i bytes) {
      const __m256i offset = _mm256_set1_epi8(static_cast<char>(kInt8Offset));
      const __m256i values = _mm256_xor_si256(bytes, offset);
      return {values, _mm256_abs_epi8(values)};
    }
    static Sums dot(Sums sums, const Weights& weights, __m256i quads) {
      const __m256i signed_quads = _mm256_sign_epi8(quads, weights.signs);
      const __m256i pairs = _mm256_maddubs_epi16(weights.magnitudes, signed_quads);
      return kept(_mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1))));
    }
    static Floats finish(Sums sums, int32_t) { return _mm256_cvtepi32_ps(sums); }
  };

  // Unsigned values of kBits bits with an offset. Products of kRun quads are added in 16 bits; with
  // four bits all of them: 8 quads * 2 * 15 * 127 is below 2^15.
  template <int kBits, int kOffset>
  struct Small {
    using Weights = __m256i;
    static constexpr int kQuadMax = 2 * ((1 << kBits) - 1) * kInt8Max;
    static constexpr bool kIsNarrow = kQuads * kQuadMax < 1 << 15;
    static constexpr int kRun = 4 * kQuadMax < 1 << 15 ? 4 : 2;
    static_assert(kRun * kQuadMax < 1 << 15);

    static Weights taken(__m256i values) { return values; }
    static __m256i widened(__m256i products) {
      return _mm256_madd_epi16(products, _mm256_set1_epi16(1));
    }
    static Sums start(int32_t) { return _mm256_setzero_si256(); }
    static Sums dot(Sums sums, const Weights (&weights)[kRun], const __m256i (&quads)[kRun]) {
      __m256i products = _mm256_maddubs_epi16(weights[0], quads[0]);
#pragma GCC unroll 4
      for (int i = 1; i < kRun; ++i) {
        products = _mm256_add_epi16(products, _mm256_maddubs_epi16(weights[i], quads[i]));
      }
      return kept(kIsNarrow ? _mm256_add_epi16(sums, products)
                            : _mm256_add_epi32(sums, widened(products)));
    }
    static Floats finish(Sums sums, int32_t negative_sum) {
      const __m256i offset =  // read from memory, so that it takes only a shift
          _mm256_mullo_epi32(_mm256_set1_epi32(negative_sum), _mm256_set1_epi32(kOffset));
      return _mm256_cvtepi32_ps(_mm256_add_epi32(kIsNarrow ? widened(sums) : sums, offset));
    }
  };

  template <int kOffset>
  struct Small<8, kOffset> : Wide {};
};

#if defined(__AVXVNNI__)
struct AvxVnni : Registers256 {
  static constexpr int kVectors = 2;
  static constexpr int kVectorsOfOneRow = 2;
  static constexpr int kMaxRows = 5;

  // Weights with an offset. A sum starts at minus the offset times the activations' sum.
  template <int kOffset>
  struct Offset {
    using Weights = __m256i;

    static Sums start(int32_t negative_sum) {
      return _mm256_mullo_epi32(_mm256_set1_epi32(negative_sum), _mm256_set1_epi32(kOffset));
    }
    static Sums dot(Sums sums, Weights weights, __m256i quads) {
      return _mm256_dpbusd_avx_epi32(sums, weights, quads);
    }
    static Floats finish(Sums sums, int32_t) { return _mm256_cvtepi32_ps(sums); }
    static Weights taken(__m256i values) { return values; }
  };

  // Values of kBits bits with an offset.
  template <int kBits, int kOffset>
  using Small = Offset<kOffset>;
};
#endif

}  // namespace
}  // namespace hearth
