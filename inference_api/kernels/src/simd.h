// Vectors of floats, for everything except products of weights. There is one struct for each size
// of registers, with the same names.
#pragma once

#include <cstring>

#include "half.h"

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(__aarch64__)
#include <arm_neon.h>
#endif

namespace hearth {
namespace {

// exp(x) = 2^n exp(r) with n = round(x / ln 2) and r = x - n ln 2. exp(r) is its Taylor polynomial;
// because |r| < 0.35, the error is below one unit in the last place.
constexpr float kLog2E = 1.44269504f;
constexpr float kLn2High = 0.693359375f;  // few bits, so that n times it is exact
constexpr float kLn2Low = -2.12194440e-4f;
constexpr uint32_t kSignBit = 0x80000000;
constexpr float kSmallestExponent = -87.0f;  // below it, exp is not a normal number and counts as 0
constexpr float kExpTerms[] = {1.0f / 5040, 1.0f / 720, 1.0f / 120, 1.0f / 24,
                               1.0f / 6,    1.0f / 2,   1.0f,       1.0f};

// Returns exp of values that are at most 0.
template <class Simd>
typename Simd::Vector exp_of_negative(typename Simd::Vector x) {
  const auto bounded = Simd::max(x, Simd::set(kSmallestExponent));
  const auto n = Simd::round(Simd::multiply(bounded, Simd::set(kLog2E)));
  auto r = Simd::multiply_add(n, Simd::set(-kLn2High), bounded);
  r = Simd::multiply_add(n, Simd::set(-kLn2Low), r);
  auto power = Simd::set(kExpTerms[0]);
  for (int term = 1; term < 8; ++term) {
    power = Simd::multiply_add(power, r, Simd::set(kExpTerms[term]));
  }
  return Simd::zero_below(x, kSmallestExponent, Simd::scale_by_power_of_two(power, n));
}

// Returns a b + c, fused if the processor can, with the same bits as vectors.
inline float fused_multiply_add(float a, float b, float c) {
#if defined(__FMA__) || defined(__aarch64__)
  return __builtin_fmaf(a, b, c);
#else
  return a * b + c;
#endif
}

// One lane: for columns that no whole vector covers, and for processors without known vectors.
struct Scalar {
  using Vector = float;
  using Ints = int32_t;
  using Square = Scalar;  // the vectors for load_columns
  static constexpr int kLanes = 1;
  static constexpr int kRows = 4;  // rows of a product's tile, with two vectors of columns
  static constexpr bool kHasBFloat16 = false;  // instructions that multiply pairs of bfloat16

  static Vector load(const float* from) { return *from; }
  static void store(float* to, Vector v) { *to = v; }
  static Vector set(float value) { return value; }
  static Vector multiply(Vector a, Vector b) { return a * b; }
  static Vector max(Vector a, Vector b) { return a > b ? a : b; }
  static Vector multiply_add(Vector a, Vector b, Vector c) { return fused_multiply_add(a, b, c); }
  static float largest_of(Vector v) { return v; }
  static float sum_of(Vector v) { return v; }
  static Vector round(Vector v) { return v + 0x1.8p23f - 0x1.8p23f; }
  static Vector scale_by_power_of_two(Vector v, Vector n) {
    return float_from_bits(bits_from_float(v) + (static_cast<uint32_t>(static_cast<int>(n)) << 23));
  }
  static Vector zero_below(Vector x, float bound, Vector v) { return x < bound ? 0.0f : v; }
  static void load_columns(const float* from, int64_t, Vector (&columns)[1]) { columns[0] = *from; }
  static void load_columns(const uint16_t* from, int64_t, Vector (&columns)[1]) {
    columns[0] = half_to_float(*from);
  }
  static Vector divide(Vector a, Vector b) { return a / b; }
  static Vector minus_magnitude(Vector v) { return float_from_bits(bits_from_float(v) | kSignBit); }
  static Vector where_negative(Vector x, Vector a, Vector b) { return x < 0.0f ? a : b; }
  static void load_quads(const int8_t* from, int64_t, Vector (&quads)[1]) {
    std::memcpy(quads, from, sizeof quads);
  }
  static Vector load_half(const uint16_t* from) { return half_to_float(*from); }
  static void store_half(uint16_t* to, Vector v) { *to = float_to_half(v); }
  // Rounds to the nearest.
  static void store_bytes(int8_t* to, Vector v) {
    *to = static_cast<int8_t>(bits_from_float(v + 0x1.8p23f));
  }
  // Stores four rows of 16 columns as quads.
  static void store_quads(int8_t* to, const int8_t* rows, int64_t stride) {
    for (int i = 0; i < 64; ++i) {
      to[i] = rows[i % 4 * stride + i / 4];
    }
  }
  // The number to add to the signed bytes that add_quads takes first.
  static constexpr int kQuadOffset = 0;
  static Ints zeros() { return 0; }
  static Ints load_words(const void* from) { return set_word(from); }
  static Ints set_word(const void* from) {
    int32_t word;
    std::memcpy(&word, from, sizeof word);
    return word;
  }
  // Adds the products of four bytes. The first ones of add_unsigned_quads are not negative.
  static Ints add_quads(Ints sums, Ints offset_quad, Ints quad) {
    for (int shift = 0; shift < 32; shift += 8) {
      sums += static_cast<int8_t>(offset_quad >> shift) * static_cast<int8_t>(quad >> shift);
    }
    return sums;
  }
  static Ints add_unsigned_quads(Ints sums, Ints unsigned_quad, Ints quad) {
    return add_quads(sums, unsigned_quad, quad);
  }
  static Vector to_floats(Ints sums, int32_t start) { return static_cast<float>(sums + start); }
};

#if defined(__aarch64__)
struct Simd128 {
  using Vector = float32x4_t;
  using Ints = int32x4_t;
  using Square = Simd128;
  static constexpr int kLanes = 4;
  static constexpr int kRows = 8;
  static constexpr bool kHasBFloat16 = false;

  static Vector load(const float* from) { return vld1q_f32(from); }
  static void store(float* to, Vector v) { vst1q_f32(to, v); }
  static Vector set(float value) { return vdupq_n_f32(value); }
  static Vector multiply(Vector a, Vector b) { return vmulq_f32(a, b); }
  static Vector multiply_add(Vector a, Vector b, Vector c) { return vfmaq_f32(c, a, b); }
  // Returns the second one if one is NaN, as on x86-64; vmaxq would return NaN.
  static Vector max(Vector a, Vector b) { return vbslq_f32(vcgtq_f32(a, b), a, b); }
  static Vector round(Vector v) { return vrndnq_f32(v); }
  static Vector scale_by_power_of_two(Vector v, Vector n) {
    const int32x4_t exponent = vshlq_n_s32(vcvtq_s32_f32(n), 23);
    return vreinterpretq_f32_s32(vaddq_s32(vreinterpretq_s32_f32(v), exponent));
  }
  static Vector zero_below(Vector x, float bound, Vector v) {
    const uint32x4_t is_below = vcltq_f32(x, vdupq_n_f32(bound));
    return vreinterpretq_f32_u32(vbicq_u32(vreinterpretq_u32_f32(v), is_below));
  }

  static Vector divide(Vector a, Vector b) { return vdivq_f32(a, b); }
  static Vector minus_magnitude(Vector v) {
    return vreinterpretq_f32_u32(vorrq_u32(vreinterpretq_u32_f32(v), vdupq_n_u32(kSignBit)));
  }
  static Vector where_negative(Vector x, Vector a, Vector b) {
    return vbslq_f32(vcltzq_f32(x), a, b);
  }
  static Vector load_half(const uint16_t* from) {
    return vcvt_f32_f16(vreinterpret_f16_u16(vld1_u16(from)));
  }
  static void store_half(uint16_t* to, Vector v) {
    vst1_u16(to, vreinterpret_u16_f16(vcvt_f16_f32(v)));
  }

  static float largest_of(Vector v) {
    const Vector two = max(v, vextq_f32(v, v, 2));
    return Scalar::max(vgetq_lane_f32(two, 0), vgetq_lane_f32(two, 1));
  }
  static float sum_of(Vector v) {
    const Vector two = vaddq_f32(v, vextq_f32(v, v, 2));
    return vgetq_lane_f32(two, 0) + vgetq_lane_f32(two, 1);
  }

  // columns[i][j] = from[j][i] for a square of kLanes x kLanes.
  static void load_columns(const float* from, int64_t stride, Vector (&columns)[kLanes]) {
    for (int i = 0; i < kLanes; ++i) {
      columns[i] = vld1q_f32(from + i * stride);
    }
    transpose(columns);
  }
  static void load_columns(const uint16_t* from, int64_t stride, Vector (&columns)[kLanes]) {
    for (int i = 0; i < kLanes; ++i) {
      columns[i] = load_half(from + i * stride);
    }
    transpose(columns);
  }
  // Moves four bytes at a time: lane j of quads[i] has from[j][4 i…].
  static void load_quads(const int8_t* from, int64_t stride, Vector (&quads)[kLanes]) {
    for (int i = 0; i < kLanes; ++i) {
      quads[i] = vreinterpretq_f32_s8(vld1q_s8(from + i * stride));
    }
    transpose(quads);
  }
  // Rounds to the nearest.
  static void store_bytes(int8_t* to, Vector v) {
    const int16x4_t shorts = vqmovn_s32(vcvtnq_s32_f32(v));
    const int8x8_t bytes = vqmovn_s16(vcombine_s16(shorts, shorts));
    vst1_lane_s32(reinterpret_cast<int32_t*>(to), vreinterpret_s32_s8(bytes), 0);
  }
  // Stores four rows of 16 columns as quads.
  static void store_quads(int8_t* to, const int8_t* rows, int64_t stride) {
    const int8x16x4_t all = {vld1q_s8(rows), vld1q_s8(rows + stride), vld1q_s8(rows + 2 * stride),
                             vld1q_s8(rows + 3 * stride)};
    vst4q_s8(to, all);
  }
  static constexpr int kQuadOffset = 0;
  static Ints zeros() { return vdupq_n_s32(0); }
  static Ints load_words(const void* from) { return vld1q_s32(static_cast<const int32_t*>(from)); }
  static Ints set_word(const void* from) {
    int32_t word;
    std::memcpy(&word, from, sizeof word);
    return vdupq_n_s32(word);
  }
  static Ints add_quads(Ints sums, Ints offset_quads, Ints quads) {
    const int8x16_t a = vreinterpretq_s8_s32(offset_quads);
    const int8x16_t b = vreinterpretq_s8_s32(quads);
#if defined(__ARM_FEATURE_DOTPROD)
    return vdotq_s32(sums, a, b);
#else
    const int32x4_t low = vpaddlq_s16(vmull_s8(vget_low_s8(a), vget_low_s8(b)));
    const int32x4_t high = vpaddlq_s16(vmull_high_s8(a, b));
    return vaddq_s32(sums, vpaddq_s32(low, high));
#endif
  }
  static Ints add_unsigned_quads(Ints sums, Ints unsigned_quads, Ints quads) {
    return add_quads(sums, unsigned_quads, quads);
  }
  static Vector to_floats(Ints sums, int32_t start) {
    return vcvtq_f32_s32(vaddq_s32(sums, vdupq_n_s32(start)));
  }

 private:
  static void transpose(Vector (&rows)[kLanes]) {
    const auto even01 = vreinterpretq_f64_f32(vtrn1q_f32(rows[0], rows[1]));
    const auto odd01 = vreinterpretq_f64_f32(vtrn2q_f32(rows[0], rows[1]));
    const auto even23 = vreinterpretq_f64_f32(vtrn1q_f32(rows[2], rows[3]));
    const auto odd23 = vreinterpretq_f64_f32(vtrn2q_f32(rows[2], rows[3]));
    rows[0] = vreinterpretq_f32_f64(vtrn1q_f64(even01, even23));
    rows[1] = vreinterpretq_f32_f64(vtrn1q_f64(odd01, odd23));
    rows[2] = vreinterpretq_f32_f64(vtrn2q_f64(even01, even23));
    rows[3] = vreinterpretq_f32_f64(vtrn2q_f64(odd01, odd23));
  }
};
#endif

#if defined(__AVX2__)
struct Simd256 {
  using Vector = __m256;
  using Ints = __m256i;
  using Square = Simd256;
  static constexpr int kLanes = 8;
  static constexpr int kRows = 4;
  static constexpr bool kHasBFloat16 = false;

  static Vector load(const float* from) { return _mm256_loadu_ps(from); }
  static void store(float* to, Vector v) { _mm256_storeu_ps(to, v); }
  static Vector set(float value) { return _mm256_set1_ps(value); }
  static Vector multiply(Vector a, Vector b) { return _mm256_mul_ps(a, b); }
  static Vector multiply_add(Vector a, Vector b, Vector c) { return _mm256_fmadd_ps(a, b, c); }
  static Vector max(Vector a, Vector b) { return _mm256_max_ps(a, b); }
  static Vector round(Vector v) {
    return _mm256_round_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static Vector scale_by_power_of_two(Vector v, Vector n) {
    const __m256i exponent = _mm256_slli_epi32(_mm256_cvtps_epi32(n), 23);
    return _mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(v), exponent));
  }
  static Vector zero_below(Vector x, float bound, Vector v) {
    return _mm256_andnot_ps(_mm256_cmp_ps(x, _mm256_set1_ps(bound), _CMP_LT_OQ), v);
  }

  static Vector divide(Vector a, Vector b) { return _mm256_div_ps(a, b); }
  static Vector minus_magnitude(Vector v) { return _mm256_or_ps(v, _mm256_set1_ps(-0.0f)); }
  static Vector where_negative(Vector x, Vector a, Vector b) {
    return _mm256_blendv_ps(b, a, _mm256_cmp_ps(x, _mm256_setzero_ps(), _CMP_LT_OQ));
  }
  static Vector load_half(const uint16_t* from) {
    return _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
  }
  static void store_half(uint16_t* to, Vector v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm256_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
  }

  static float largest_of(Vector v) {
    const __m128 four = _mm_max_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 two = _mm_max_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_max_ss(two, _mm_movehdup_ps(two)));
  }

  static float sum_of(Vector v) {
    const __m128 four = _mm_add_ps(_mm256_castps256_ps128(v), _mm256_extractf128_ps(v, 1));
    const __m128 two = _mm_add_ps(four, _mm_movehl_ps(four, four));
    return _mm_cvtss_f32(_mm_add_ss(two, _mm_movehdup_ps(two)));
  }

  // columns[i][j] = from[j][i] for a square of kLanes x kLanes.
  static void load_columns(const float* from, int64_t stride, Vector (&columns)[kLanes]) {
    load_words(from, stride * static_cast<int64_t>(sizeof(float)), columns);
  }
  static void load_columns(const uint16_t* from, int64_t stride, Vector (&columns)[kLanes]) {
    for (int i = 0; i < 4; ++i) {
      const auto* upper = reinterpret_cast<const __m128i*>(from + i * stride);
      const auto* lower = reinterpret_cast<const __m128i*>(from + (i + 4) * stride);
      const __m128i first = _mm_loadu_si128(upper);
      const __m128i second = _mm_loadu_si128(lower);
      columns[i] = _mm256_cvtph_ps(_mm_unpacklo_epi64(first, second));
      columns[i + 4] = _mm256_cvtph_ps(_mm_unpackhi_epi64(first, second));
    }
    transpose_quarters(columns);
  }
  // Moves four bytes at a time: lane j of quads[i] has from[j][4 i…].
  static void load_quads(const int8_t* from, int64_t stride, Vector (&quads)[kLanes]) {
    load_words(from, stride, quads);
  }
  // Rounds to the nearest.
  static void store_bytes(int8_t* to, Vector v) {
    const __m256i ints = _mm256_cvtps_epi32(v);
    const __m128i shorts =
        _mm_packs_epi32(_mm256_castsi256_si128(ints), _mm256_extracti128_si256(ints, 1));
    _mm_storel_epi64(reinterpret_cast<__m128i*>(to), _mm_packs_epi16(shorts, shorts));
  }
  // Stores four rows of 16 columns as quads.
  static void store_quads(int8_t* to, const int8_t* rows, int64_t stride) {
    __m128i row[4];
    for (int i = 0; i < 4; ++i) {
      row[i] = _mm_loadu_si128(reinterpret_cast<const __m128i*>(rows + i * stride));
    }
    const __m128i low01 = _mm_unpacklo_epi8(row[0], row[1]);
    const __m128i high01 = _mm_unpackhi_epi8(row[0], row[1]);
    const __m128i low23 = _mm_unpacklo_epi8(row[2], row[3]);
    const __m128i high23 = _mm_unpackhi_epi8(row[2], row[3]);
    auto* quads = reinterpret_cast<__m128i*>(to);
    _mm_storeu_si128(quads, _mm_unpacklo_epi16(low01, low23));
    _mm_storeu_si128(quads + 1, _mm_unpackhi_epi16(low01, low23));
    _mm_storeu_si128(quads + 2, _mm_unpacklo_epi16(high01, high23));
    _mm_storeu_si128(quads + 3, _mm_unpackhi_epi16(high01, high23));
  }
  static Ints zeros() { return _mm256_setzero_si256(); }
  static Ints load_words(const void* from) {
    return _mm256_loadu_si256(static_cast<const __m256i*>(from));
  }
  static Ints set_word(const void* from) {
    int32_t word;
    std::memcpy(&word, from, sizeof word);
    return _mm256_set1_epi32(word);
  }
#if defined(__AVXVNNI__)
  static constexpr int kQuadOffset = 128;
  static Ints add_quads(Ints sums, Ints offset_quads, Ints quads) {
    return _mm256_dpbusd_avx_epi32(sums, offset_quads, quads);
  }
  static Ints add_unsigned_quads(Ints sums, Ints unsigned_quads, Ints quads) {
    return add_quads(sums, unsigned_quads, quads);
  }
#else
  // vpmaddubsw adds two products in 16 bits, and saturates with more than 7 bits: see isa_256.h.
  static constexpr int kQuadOffset = 0;
  static Ints add_quads(Ints sums, Ints offset_quads, Ints quads) {
    return add_unsigned_quads(sums, _mm256_abs_epi8(offset_quads),
                              _mm256_sign_epi8(quads, offset_quads));
  }
  static Ints add_unsigned_quads(Ints sums, Ints unsigned_quads, Ints quads) {
    const __m256i pairs = _mm256_maddubs_epi16(unsigned_quads, quads);
    return _mm256_add_epi32(sums, _mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
#endif
  static Vector to_floats(Ints sums, int32_t start) {
    return _mm256_cvtepi32_ps(_mm256_add_epi32(sums, _mm256_set1_epi32(start)));
  }

 private:
  // columns[i][j] = word i of the row that begins j strides, in bytes, after `from`.
  static void load_words(const void* from, int64_t stride, Vector (&columns)[kLanes]) {
    const auto* rows = static_cast<const char*>(from);
    for (int i = 0; i < 4; ++i) {
      const auto* upper = reinterpret_cast<const float*>(rows + i * stride);
      const auto* lower = reinterpret_cast<const float*>(rows + (i + 4) * stride);
      columns[i] =
          _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(upper)), _mm_loadu_ps(lower), 1);
      columns[i + 4] = _mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(upper + 4)),
                                            _mm_loadu_ps(lower + 4), 1);
    }
    transpose_quarters(columns);
  }

  // Transposes the left halves of rows i and i + 4, then the right halves, to columns.
  static void transpose_quarters(Vector (&halves)[kLanes]) {
    for (int half = 0; half < 8; half += 4) {
      const __m256 low01 = _mm256_unpacklo_ps(halves[half], halves[half + 1]);
      const __m256 high01 = _mm256_unpackhi_ps(halves[half], halves[half + 1]);
      const __m256 low23 = _mm256_unpacklo_ps(halves[half + 2], halves[half + 3]);
      const __m256 high23 = _mm256_unpackhi_ps(halves[half + 2], halves[half + 3]);
      halves[half] = _mm256_shuffle_ps(low01, low23, _MM_SHUFFLE(1, 0, 1, 0));
      halves[half + 1] = _mm256_shuffle_ps(low01, low23, _MM_SHUFFLE(3, 2, 3, 2));
      halves[half + 2] = _mm256_shuffle_ps(high01, high23, _MM_SHUFFLE(1, 0, 1, 0));
      halves[half + 3] = _mm256_shuffle_ps(high01, high23, _MM_SHUFFLE(3, 2, 3, 2));
    }
  }
};
#endif

#if defined(__AVX512F__)
struct Simd512 {
  using Vector = __m512;
  using Ints = __m512i;
  using Square = Simd256;
  static constexpr int kLanes = 16;
  static constexpr int kRows = 8;
  static constexpr bool kHasBFloat16 = false;

  static Vector load(const float* from) { return _mm512_loadu_ps(from); }
  static void store(float* to, Vector v) { _mm512_storeu_ps(to, v); }
  static Vector set(float value) { return _mm512_set1_ps(value); }
  static Vector multiply(Vector a, Vector b) { return _mm512_mul_ps(a, b); }
  static Vector multiply_add(Vector a, Vector b, Vector c) { return _mm512_fmadd_ps(a, b, c); }
  static Vector max(Vector a, Vector b) { return _mm512_max_ps(a, b); }
  static Vector round(Vector v) {
    return _mm512_roundscale_ps(v, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
  }
  static Vector scale_by_power_of_two(Vector v, Vector n) { return _mm512_scalef_ps(v, n); }
  static Vector zero_below(Vector x, float bound, Vector v) {
    return _mm512_mask_mov_ps(v, _mm512_cmp_ps_mask(x, _mm512_set1_ps(bound), _CMP_LT_OQ),
                              _mm512_setzero_ps());
  }

  static Vector divide(Vector a, Vector b) { return _mm512_div_ps(a, b); }
  static Vector minus_magnitude(Vector v) {
    const __m512i sign = _mm512_castps_si512(_mm512_set1_ps(-0.0f));
    return _mm512_castsi512_ps(_mm512_or_si512(_mm512_castps_si512(v), sign));
  }
  static Vector where_negative(Vector x, Vector a, Vector b) {
    return _mm512_mask_mov_ps(b, _mm512_cmp_ps_mask(x, _mm512_setzero_ps(), _CMP_LT_OQ), a);
  }
  static Vector load_half(const uint16_t* from) {
    return _mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
  }
  static void store_half(uint16_t* to, Vector v) {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to),
                        _mm512_cvtps_ph(v, _MM_FROUND_TO_NEAREST_INT));
  }

  static void store_bytes(int8_t* to, Vector v) {
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm512_cvtsepi32_epi8(_mm512_cvtps_epi32(v)));
  }
  static constexpr int kQuadOffset = 128;
  static Ints zeros() { return _mm512_setzero_si512(); }
  static Ints load_words(const void* from) { return _mm512_loadu_si512(from); }
  static Ints set_word(const void* from) {
    int32_t word;
    std::memcpy(&word, from, sizeof word);
    return _mm512_set1_epi32(word);
  }
  static Ints add_quads(Ints sums, Ints offset_quads, Ints quads) {
    return _mm512_dpbusd_epi32(sums, offset_quads, quads);
  }
  static Ints add_unsigned_quads(Ints sums, Ints unsigned_quads, Ints quads) {
    return add_quads(sums, unsigned_quads, quads);
  }
  static Vector to_floats(Ints sums, int32_t start) {
    return _mm512_cvtepi32_ps(_mm512_add_epi32(sums, _mm512_set1_epi32(start)));
  }

  static float largest_of(Vector v) {
    return Simd256::largest_of(Simd256::max(lower_half(v), upper_half(v)));
  }
  static float sum_of(Vector v) {
    return Simd256::sum_of(_mm256_add_ps(lower_half(v), upper_half(v)));
  }

 private:
  static __m256 lower_half(Vector v) { return _mm512_castps512_ps256(v); }
  static __m256 upper_half(Vector v) {
    return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(v), 1));
  }
};

#if defined(__AVX512BF16__)
// The same with products of pairs of bfloat16.
struct Simd512BFloat16 : Simd512 {
  static constexpr bool kHasBFloat16 = true;

  // Rounds two vectors to the nearest, and stores one after the other.
  static void store_bfloat16s(void* to, Vector first, Vector second) {
    _mm512_storeu_si512(to, rounded(first, second));
  }
  // Rounds two vectors to the nearest, and stores pairs of their numbers in the same place.
  static void store_bfloat16_pairs(void* to, Vector first, Vector second) {
    alignas(64) static constexpr uint32_t kPlaces[kLanes] = {
        0x100000, 0x110001, 0x120002, 0x130003, 0x140004, 0x150005, 0x160006, 0x170007,
        0x180008, 0x190009, 0x1a000a, 0x1b000b, 0x1c000c, 0x1d000d, 0x1e000e, 0x1f000f};
    const __m512i places = _mm512_load_si512(kPlaces);
    _mm512_storeu_si512(to, _mm512_permutexvar_epi16(places, rounded(first, second)));
  }
  static Vector add_pairs(Vector sums, Ints a, Ints b) {
    return _mm512_dpbf16_ps(sums, as_pairs(a), as_pairs(b));
  }

 private:
  static __m512i rounded(Vector first, Vector second) {
    const __m512bh pairs = _mm512_cvtne2ps_pbh(second, first);
    __m512i bits;
    std::memcpy(&bits, &pairs, sizeof bits);
    return bits;
  }
  static __m512bh as_pairs(Ints bits) {
    __m512bh pairs;
    std::memcpy(&pairs, &bits, sizeof pairs);
    return pairs;
  }
};
#endif
#endif

}  // namespace
}  // namespace hearth
