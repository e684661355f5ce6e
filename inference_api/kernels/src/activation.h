// The activation functions between an MLP's two products, for the results of one panel.
#pragma once

#include "kernels.h"
#include "simd.h"

namespace hearth {
namespace {

// Returns 1 / (1 + exp(-x)), from the exponential of -|x| so that nothing overflows.
template <class Simd>
typename Simd::Vector sigmoid(typename Simd::Vector x) {
  const auto one = Simd::set(1.0f);
  const auto power = exp_of_negative<Simd>(Simd::minus_magnitude(x));
  return Simd::divide(Simd::where_negative(x, power, one), Simd::multiply_add(one, power, one));
}

// Returns the normal distribution's cumulative probability, by Abramowitz and Stegun's formula
// 7.1.26 for the error function, whose error is below 1.5e-7.
template <class Simd>
typename Simd::Vector normal_probability(typename Simd::Vector x) {
  constexpr float kInverseRoot2 = 0.707106781f;
  constexpr float kMinusStep = -0.3275911f;
  constexpr float kTerms[] = {1.061405429f, -1.453152027f, 1.421413741f, -0.284496736f,
                              0.254829592f};
  const auto one = Simd::set(1.0f);
  const auto z = Simd::multiply(Simd::minus_magnitude(x), Simd::set(kInverseRoot2));
  const auto t = Simd::divide(one, Simd::multiply_add(z, Simd::set(kMinusStep), one));
  auto sum = Simd::set(kTerms[0]);
  for (int term = 1; term < 5; ++term) {
    sum = Simd::multiply_add(sum, t, Simd::set(kTerms[term]));
  }
  const auto minus_square = Simd::multiply(Simd::multiply(z, z), Simd::set(-1.0f));
  const auto tail = Simd::multiply(Simd::multiply(sum, Simd::multiply(t, Simd::set(0.5f))),
                                   exp_of_negative<Simd>(minus_square));
  return Simd::where_negative(x, tail, Simd::multiply_add(tail, Simd::set(-1.0f), one));
}

template <class Simd>
typename Simd::Vector activated(Activation activation, typename Simd::Vector x) {
  constexpr float kTwiceRoot2OverPi = 1.595769122f;
  constexpr float kCubic = 0.044715f;
  switch (activation) {
    case Activation::kSilu:
      return Simd::multiply(x, sigmoid<Simd>(x));
    case Activation::kGelu:
      return Simd::multiply(x, normal_probability<Simd>(x));
    case Activation::kGeluTanh: {  // (1 + tanh y) / 2 = sigmoid(2 y)
      const auto cubic = Simd::multiply(Simd::multiply(x, x), Simd::set(kCubic));
      const auto y = Simd::multiply(Simd::multiply_add(cubic, x, x), Simd::set(kTwiceRoot2OverPi));
      return Simd::multiply(x, sigmoid<Simd>(y));
    }
    case Activation::kSquaredRelu:
      return Simd::multiply(x, Simd::where_negative(x, Simd::set(0.0f), x));
    default:
      return Simd::where_negative(x, Simd::set(0.0f), x);
  }
}

// Returns the smaller one; `v` if it is not a number.
template <class Simd>
typename Simd::Vector at_most(typename Simd::Vector v, float limit) {
  const auto minus_one = Simd::set(-1.0f);
  const auto negated = Simd::max(Simd::set(-limit), Simd::multiply(v, minus_one));
  return Simd::multiply(negated, minus_one);
}

// Replaces `values`, which are clamped gates, by their function of `passing`: see SwiGlu.
template <class Simd>
void pass_clamped(const SwiGlu& swiglu, float* values, const float* passing) {
  const auto one = Simd::set(1.0f);
  for (int i = 0; i < kPanel; i += Simd::kLanes) {
    const auto gate = at_most<Simd>(Simd::load(values + i), swiglu.limit);
    const auto above = Simd::max(Simd::set(-swiglu.limit), Simd::load(passing + i));
    const auto passed = Simd::multiply_add(one, at_most<Simd>(above, swiglu.limit), one);
    const auto share = sigmoid<Simd>(Simd::multiply(gate, Simd::set(swiglu.alpha)));
    Simd::store(values + i, Simd::multiply(Simd::multiply(gate, share), passed));
  }
}

// Replaces `values` by activation(values), times `passing` unless that is null.
template <class Simd>
void activate(Activation activation, float* values, const float* passing) {
  for (int i = 0; i < kPanel; i += Simd::kLanes) {
    auto result = activated<Simd>(activation, Simd::load(values + i));
    if (passing != nullptr) {
      result = Simd::multiply(result, Simd::load(passing + i));
    }
    Simd::store(values + i, result);
  }
}

// values[i] *= sigmoid(gates[i]).
template <class Simd>
void gate(const float* gates, int64_t count, float* values) {
  int64_t i = 0;
  for (; i + Simd::kLanes <= count; i += Simd::kLanes) {
    const auto share = sigmoid<Simd>(Simd::load(gates + i));
    Simd::store(values + i, Simd::multiply(Simd::load(values + i), share));
  }
  for (; i < count; ++i) {
    values[i] *= sigmoid<Scalar>(gates[i]);
  }
}

}  // namespace
}  // namespace hearth
