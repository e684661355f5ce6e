// Norms of rows before products, and of heads before attention. Sums are kept per lane, so that
// every variant adds in the same order.
#pragma once

#include "kernels.h"
#include "quantise.h"

namespace hearth {
namespace {

constexpr int kNormLanes = 16;

inline float lane_sum(float* lanes) {
  for (int width = kNormLanes / 2; width > 0; width /= 2) {
    for (int lane = 0; lane < width; ++lane) {
      lanes[lane] += lanes[lane + width];
    }
  }
  return lanes[0];
}

inline float sum(const float* x, int64_t size) {
  float lanes[kNormLanes] = {};
  for (int64_t i = 0; i < size; i += kNormLanes) {
    for (int lane = 0; lane < kNormLanes; ++lane) {
      lanes[lane] += x[i + lane];
    }
  }
  return lane_sum(lanes);
}

inline float sum_of_squares(const float* x, int64_t size, float offset) {
  float lanes[kNormLanes] = {};
  int64_t i = 0;
  for (; i + kNormLanes <= size; i += kNormLanes) {
    for (int lane = 0; lane < kNormLanes; ++lane) {
      const float value = x[i + lane] - offset;
      lanes[lane] += value * value;
    }
  }
  for (int lane = 0; i + lane < size; ++lane) {
    const float value = x[i + lane] - offset;
    lanes[lane] += value * value;
  }
  return lane_sum(lanes);
}

inline float inverse_root(float square_sum, int64_t size, float eps) {
  return 1.0f / __builtin_sqrtf(square_sum / static_cast<float>(size) + eps);
}

// Writes the norm of x in the form that products take, group by group while it is in registers.
inline void norm_row(const NormCall& call, const float* x, void* row) {
  const bool is_layer = call.kind == NormKind::kLayer;
  const float mean = is_layer ? sum(x, call.size) / static_cast<float>(call.size) : 0.0f;
  const float inverse = inverse_root(sum_of_squares(x, call.size, mean), call.size, call.eps);
  for (int64_t first = 0; first < call.size; first += kGroup) {
    float normed[kGroup];
    for (int i = 0; i < kGroup; ++i) {
      normed[i] = (x[first + i] - mean) * inverse * call.weight[first + i];
    }
    if (call.bias != nullptr) {
      for (int i = 0; i < kGroup; ++i) {
        normed[i] += call.bias[first + i];
      }
    }
    prepare_group(call.bits, normed, row, first / kGroup);
  }
}

// Normalises a head in place. `weight` null counts as 1.
inline void norm_head(float* head, const float* weight, int64_t head_dim, float eps) {
  const float inverse = inverse_root(sum_of_squares(head, head_dim, 0.0f), head_dim, eps);
  for (int64_t i = 0; i < head_dim; ++i) {
    head[i] *= inverse;
  }
  for (int64_t i = 0; weight != nullptr && i < head_dim; ++i) {
    head[i] *= weight[i];
  }
}

}  // namespace
}  // namespace hearth
