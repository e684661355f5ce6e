// What the processor's products make at most: sums that stay in registers, and no memory.
#include <cstdint>

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__ARM_NEON)
#include <arm_neon.h>
#endif

namespace {

constexpr int kSums = 12;  // as many at once that none waits for the one before

// Tells the compiler nothing of a value: it would compute equal sums once.
template <class Vector>
void differ(Vector& value) {
#if defined(__AVX2__)
  asm volatile("" : "+x"(value));
#elif defined(__ARM_NEON)
  asm volatile("" : "+w"(value));
#endif
}

// Returns how many operations were done: a product and its sum are two.
template <class Vector, class Multiply>
int64_t repeat(int64_t rounds, int products, Vector operand, Multiply multiply) {
  Vector sums[kSums] = {};
  for (Vector& sum : sums) differ(sum);
  for (int64_t round = 0; round < rounds; ++round)
    for (Vector& sum : sums) sum = multiply(sum, operand);
  for (Vector& sum : sums) {
    volatile Vector kept = sum;  // so that they are computed
    (void)kept;
  }
  return rounds * kSums * products * 2;
}

#if defined(__AMX_TILE__)
struct TileConfig {
  uint8_t palette = 1, start_row = 0, reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};
};

// The same with four tiles of sums, 4 and 5 of activations, and 6 and 7 of weights, which have
// `depth` times four bytes of inputs.
template <class Multiply>
int64_t repeat_tiles(int64_t rounds, uint8_t depth, int products, Multiply multiply) {
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) {
    config.row_bytes[tile] = tile == 4 || tile == 5 ? 4 * depth : 64;
    config.rows[tile] = tile < 6 ? 16 : depth;
  }
  asm volatile("" : : "m"(config));
  _tile_loadconfig(&config);
  for (int64_t round = 0; round < rounds; ++round) multiply();
  _tile_release();
  return rounds * 4 * 16 * 16 * products * 2;
}
#endif

}  // namespace

// Each returns 0 where the processor's kernels multiply otherwise.
#define PEAK extern "C" __attribute__((visibility("default"))) int64_t

PEAK peak_int8(int64_t rounds) {
#if defined(__AMX_INT8__)
  return repeat_tiles(rounds, 8, 32, [] {  // a group of 32 inputs has a scale
    _tile_dpbssd(0, 4, 6);
    _tile_dpbssd(1, 4, 7);
    _tile_dpbssd(2, 5, 6);
    _tile_dpbssd(3, 5, 7);
  });
#elif defined(__AVX512VNNI__)
  return repeat(rounds, 64, _mm512_set1_epi8(1), [](__m512i sum, __m512i operand) {
    return _mm512_dpbusd_epi32(sum, operand, operand);
  });
#elif defined(__AVXVNNI__)
  return repeat(rounds, 32, _mm256_set1_epi8(1), [](__m256i sum, __m256i operand) {
    return _mm256_dpbusd_avx_epi32(sum, operand, operand);
  });
#elif defined(__AVX2__)
  return repeat(rounds, 32, _mm256_set1_epi8(1), [](__m256i sum, __m256i operand) {
    const __m256i pairs = _mm256_maddubs_epi16(_mm256_xor_si256(sum, operand), operand);
    return _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, operand));
  });
#elif defined(__ARM_FEATURE_DOTPROD)
  return repeat(rounds, 16, vdupq_n_s32(0x01010101), [](int32x4_t sum, int32x4_t operand) {
    const int8x16_t bytes = vreinterpretq_s8_s32(operand);
    return vdotq_s32(sum, bytes, bytes);
  });
#else
  return 0;
#endif
}

// With what groups of 32 inputs cost besides: their sums become floats, times two scales.
PEAK peak_int8_groups(int64_t rounds) {
#if defined(__AVX512VNNI__) && !defined(__AMX_INT8__)
  constexpr int kProducts = 8;  // of a group: four inputs each
  const __m512i operand = _mm512_set1_epi8(1);
  __m512 totals[kSums] = {}, scale = _mm512_set1_ps(1), other = scale;
  for (int64_t round = 0; round < rounds / kProducts; ++round) {
    __m512i sums[kSums];
    for (__m512i& sum : sums) {
      sum = operand;
      asm volatile("" : "+v"(sum));
    }
    for (int product = 0; product < kProducts; ++product)
      for (__m512i& sum : sums) sum = _mm512_dpbusd_epi32(sum, operand, operand);
    for (int i = 0; i < kSums; ++i) {
      asm volatile("" : "+v"(scale), "+v"(other));
      totals[i] =
          _mm512_fmadd_ps(_mm512_cvtepi32_ps(sums[i]), _mm512_mul_ps(scale, other), totals[i]);
    }
  }
  for (__m512& total : totals) {
    volatile __m512 kept = total;
    (void)kept;
  }
  return rounds / kProducts * kProducts * kSums * 64 * 2;
#else
  return 0;
#endif
}

PEAK peak_bfloat16(int64_t rounds) {
#if defined(__AMX_BF16__)
  return repeat_tiles(rounds, 16, 32, [] {
    _tile_dpbf16ps(0, 4, 6);
    _tile_dpbf16ps(1, 4, 7);
    _tile_dpbf16ps(2, 5, 6);
    _tile_dpbf16ps(3, 5, 7);
  });
#elif defined(__AVX512BF16__)
  return repeat(rounds, 32, _mm512_set1_ps(1), [](__m512 sum, __m512 operand) {
    const __m512bh pairs = reinterpret_cast<const __m512bh&>(operand);
    return _mm512_dpbf16_ps(sum, pairs, pairs);
  });
#else
  return 0;
#endif
}

PEAK peak_float32(int64_t rounds) {
#if defined(__AVX512F__)
  return repeat(rounds, 16, _mm512_set1_ps(1),
                [](__m512 sum, __m512 operand) { return _mm512_fmadd_ps(operand, operand, sum); });
#elif defined(__AVX2__)
  return repeat(rounds, 8, _mm256_set1_ps(1),
                [](__m256 sum, __m256 operand) { return _mm256_fmadd_ps(operand, operand, sum); });
#elif defined(__ARM_NEON)
  return repeat(rounds, 4, vdupq_n_f32(1), [](float32x4_t sum, float32x4_t operand) {
    return vfmaq_f32(sum, operand, operand);
  });
#else
  return 0;
#endif
}
