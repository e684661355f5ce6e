// Short causal convolutions, separate for each channel. Channels are the inner loops, and a token's
// sum has one order: its bits depend neither on the instruction set nor on how prompts are cut.
#pragma once

#include <cstring>

#include "kernels.h"

namespace hearth {
namespace {

// Computes out[c] = bias[c] + sum over i of conv[i][c] * input i. Inputs are those of the tail,
// oldest first, and then `input`, which is appended to the tail.
inline void convolve(const float* conv, int64_t conv_stride, const float* bias, int64_t width,
                     const float* input, int64_t count, float* tail, int64_t stride, float* out) {
  const int64_t last = width - 1;
  for (int64_t c = 0; c < count; ++c) {
    out[c] = bias == nullptr ? 0.0f : bias[c];
  }
  for (int64_t i = 0; i < last; ++i) {
    for (int64_t c = 0; c < count; ++c) {
      out[c] += conv[i * conv_stride + c] * tail[i * stride + c];
    }
  }
  for (int64_t c = 0; c < count; ++c) {
    out[c] += conv[last * conv_stride + c] * input[c];
  }
  const auto bytes = static_cast<size_t>(count) * sizeof(float);
  for (int64_t i = 0; i + 1 < last; ++i) {
    std::memcpy(tail + i * stride, tail + (i + 1) * stride, bytes);
  }
  std::memcpy(tail + (last - 1) * stride, input, bytes);
}

inline void short_conv(const ShortConvCall& call, int64_t first, int64_t end) {
  const int64_t count = end - first;
  const float* const bias = call.bias == nullptr ? nullptr : call.bias + first;
  float* tail = call.tail + first;
  int64_t stride = call.channels;
  float guessed[(kMaxConvWidth - 1) * kChannels];
  for (int64_t token = 0; token < call.num_tokens; ++token) {
    const float* const b = call.mixed + token * 3 * call.channels + first;
    const float* const c = b + call.channels;
    const float* const x = c + call.channels;
    float* const out = call.out + token * call.channels + first;
    if (token == call.num_kept) {
      for (int64_t i = 0; i + 1 < call.width; ++i) {
        std::memcpy(guessed + i * kChannels, tail + i * stride,
                    static_cast<size_t>(count) * sizeof(float));
      }
      tail = guessed;
      stride = kChannels;
    }
    float input[kChannels];
    for (int64_t i = 0; i < count; ++i) {
      input[i] = b[i] * x[i];
    }
    convolve(call.conv + first, call.channels, bias, call.width, input, count, tail, stride, out);
    for (int64_t i = 0; i < count; ++i) {
      out[i] *= c[i];
    }
  }
}

}  // namespace
}  // namespace hearth
