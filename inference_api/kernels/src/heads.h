// The step from projections to attention: a token's query and key heads are normalised, if the
// model says so, and turned; keys and values are written to the cache.
#pragma once

#include "hadamard.h"
#include "kernels.h"
#include "norm.h"
#include "quantise.h"
#include "simd.h"

namespace hearth {
namespace {

// Turns pairs of dimensions i and i + rotary_dim / 2: see engine/rope.py.
inline void turn(float* head, const float* cos, const float* sin, int64_t rotary_dim) {
  const int64_t half = rotary_dim / 2;
  for (int64_t i = 0; i < half; ++i) {
    const float first = head[i];
    const float second = head[i + half];
    head[i] = first * cos[i] + second * sin[i];
    head[i + half] = second * cos[i + half] + first * sin[i + half];
  }
}

// Bounds magnitudes by the largest half precision number. An infinity in the cache would turn every
// later token of the row into NaN.
template <class Simd>
typename Simd::Vector within_half(typename Simd::Vector v) {
  constexpr float kLargestHalf = 65504.0f;
  const auto least = Simd::set(-kLargestHalf);
  const auto minus_one = Simd::set(-1.0f);
  const auto bounded_below = Simd::max(least, v);  // returns the second one if either is NaN
  const auto negated = Simd::max(least, Simd::multiply(bounded_below, minus_one));
  return Simd::multiply(negated, minus_one);
}

inline void write_int8_head(const float* head, int64_t head_dim, int8_t* to) {
  const ByteScale scale = byte_scale(head, head_dim);
  for (int64_t i = 0; i < head_dim; ++i) {
    to[i] = static_cast<int8_t>(to_byte(head[i], scale.inverse));
  }
  std::memcpy(to + head_dim, &scale.scale, sizeof scale.scale);
}

// Rounds a group to the nearest steps of a scale. The number farthest from zero becomes -8 steps,
// or nearly, because the scale is rounded first.
inline void quantise_cached(const float (&x)[kGroup], CachedGroup& group) {
  constexpr int kHalf = kGroup / 2;
  constexpr float kLeast = -8.0f;
  constexpr float kMost = 7.0f;
  constexpr uint16_t kHalfNan = 0x7e00;
  const uint32_t largest_bits = largest_magnitude_bits(x, kGroup);
  const bool is_finite = largest_bits < kInfinityBits;
  float farthest = 0.0f;
  for (const float each : x) {
    farthest = (bits_from_float(each) & kMagnitudeMask) == largest_bits ? each : farthest;
  }
  group.scale = is_finite ? float_to_half(within_half<Scalar>(farthest / kLeast)) : kHalfNan;
  const float scale = half_to_float(group.scale);
  const float inverse = is_finite && scale != 0.0f ? 1.0f / scale : 0.0f;
  const auto step = [&](float number) {
    const float scaled = inverse == 0.0f ? 0.0f : number * inverse;  // 0 even if not finite
    const float bounded = scaled < kLeast ? kLeast : scaled;
    return to_byte(bounded > kMost ? kMost : bounded, 1.0f);
  };
  for (int i = 0; i < kHalf; ++i) {
    group.steps[i] = static_cast<uint8_t>(16 * step(x[i]) + (step(x[i + kHalf]) & 0xf));
  }
}

inline void write_int4_head(const float* head, int64_t head_dim, CachedGroup* to) {
  for (int64_t first = 0; first < head_dim; first += kGroup, ++to) {
    float x[kGroup] = {};
    for (int i = 0; i < kGroup && first + i < head_dim; ++i) {
      x[i] = head[first + i];
    }
    quantise_cached(x, *to);
  }
}

template <class Simd>
void write_head(float* head, int64_t head_dim, CacheType type, int64_t rotated, char* place) {
  if (is_scaled(type)) {
    rotate(head, head_dim, rotated);
  }
  if (type == CacheType::kInt4) {
    write_int4_head(head, head_dim, reinterpret_cast<CachedGroup*>(place));
    return;
  }
  if (type == CacheType::kInt8) {
    write_int8_head(head, head_dim, reinterpret_cast<int8_t*>(place));
    return;
  }
  if (type == CacheType::kFloat32) {
    auto* to = reinterpret_cast<float*>(place);
    for (int64_t i = 0; i < head_dim; ++i) {
      to[i] = head[i];
    }
    return;
  }
  auto* to = reinterpret_cast<uint16_t*>(place);
  int64_t i = 0;
  for (; i + Simd::kLanes <= head_dim; i += Simd::kLanes) {
    Simd::store_half(to + i, within_half<Simd>(Simd::load(head + i)));
  }
  for (; i < head_dim; ++i) {
    Scalar::store_half(to + i, within_half<Scalar>(head[i]));
  }
}

inline void norm_heads(const HeadsCall& call, float* heads, int64_t count, const float* weight) {
  const int64_t size = count * call.head_dim;
  const int64_t step = call.is_norm_whole ? size : call.head_dim;
  for (int64_t first = 0; first < size; first += step) {
    norm_head(heads + first, weight + first, step, call.eps);
  }
}

template <class Simd>
void write_heads(const HeadsCall& call) {
  const int64_t query_size = call.num_heads * call.head_dim;
  const auto norm = [&] {
    norm_heads(call, call.queries, call.num_heads, call.qk_norm);
    norm_heads(call, call.keys, call.num_kv_heads, call.qk_norm + query_size);
  };
  if (call.qk_norm != nullptr && !call.is_norm_last) {
    norm();
  }
  float* const values = call.keys + call.num_kv_heads * call.head_dim;
  for (int64_t head = 0; call.has_value_norm && head < call.num_kv_heads; ++head) {
    norm_head(values + head * call.head_dim, nullptr, call.head_dim, call.eps);
  }
  for (int64_t head = 0; head < call.num_heads; ++head) {
    turn(call.queries + head * call.head_dim, call.cos, call.sin, call.rotary_dim);
  }
  for (int64_t head = 0; head < call.num_kv_heads; ++head) {
    turn(call.keys + head * call.key_dim, call.cos, call.sin, call.rotary_dim);
  }
  if (call.qk_norm != nullptr && call.is_norm_last) {
    norm();
  }
  if (call.query_scale != 1.0f) {
    for (int64_t i = 0; i < query_size; ++i) {
      call.queries[i] *= call.query_scale;
    }
  }
  const bool has_values = call.key_dim == call.head_dim;
  const int64_t of_keys = key_bytes(call.type, call.key_dim);
  const int64_t rotated = rotated_dims(call.key_dim, call.value_dim);
  char* place = call.place;
  for (int64_t head = 0; head < call.num_kv_heads; ++head, place += of_keys) {
    write_head<Simd>(call.keys + head * call.key_dim, call.key_dim, call.type, rotated, place);
    if (has_values) {
      place += of_keys;
      write_head<Simd>(values + head * call.head_dim, call.head_dim, call.type, rotated, place);
    }
  }
}

}  // namespace
}  // namespace hearth
