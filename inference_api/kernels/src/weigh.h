// Computes from logits how likely tokens are, relative to the likeliest one.
#pragma once

#include "kernels.h"
#include "simd.h"

namespace hearth {
namespace {

// Returns the largest logit that is not NaN; minus infinity if there is none.
template <class Simd>
float largest_of(const float* x, int64_t count) {
  auto largest = Simd::set(-__builtin_inff());
  int64_t i = 0;
  for (; i + Simd::kLanes <= count; i += Simd::kLanes) {
    largest = Simd::max(Simd::load(x + i), largest);  // returns the second one if the first is NaN
  }
  float result = Simd::largest_of(largest);
  for (; i < count; ++i) {
    result = x[i] > result ? x[i] : result;
  }
  return result;
}

// Computes weights[i] = exp((logits[i] - largest) / temperature); 0 below e^-87.
template <class Simd>
void weigh(const float* logits, int64_t count, float largest, float temperature, float* weights) {
  const auto offset = Simd::set(-largest);
  const auto one = Simd::set(1.0f);
  int64_t i = 0;
  for (; i + Simd::kLanes <= count; i += Simd::kLanes) {
    const auto below = Simd::multiply_add(Simd::load(logits + i), one, offset);
    Simd::store(weights + i, exp_of_negative<Simd>(Simd::divide(below, Simd::set(temperature))));
  }
  for (; i < count; ++i) {
    weights[i] = exp_of_negative<Scalar>((logits[i] - largest) / temperature);
  }
}

}  // namespace
}  // namespace hearth
