#include "streams.h"

#include <algorithm>

#include "grow.h"
#include "model_calls.h"
#include "norm.h"
#include "soften.h"

namespace hearth {
namespace {

constexpr float kLeastSquare = 1e-5f;  // least mean square to divide by when a stream is scaled

// Returns the floats of a token.
int64_t width(const HearthModel& model) { return model.streams.count * model.hidden; }

float mean_square(const float* x, int64_t size) {
  return sum_of_squares(x, size, 0.0f) / static_cast<float>(size);
}

// Scales `x` to the root mean square of `like`.
void match(const float* like, int64_t size, float* x) {
  const float factor =
      __builtin_sqrtf(mean_square(like, size) / std::max(mean_square(x, size), kLeastSquare));
  for (int64_t i = 0; i < size; ++i) {
    x[i] *= factor;
  }
}

float dot(const float* x, const float* y, int64_t size) {
  float lanes[kNormLanes] = {};
  for (int64_t i = 0; i < size; i += kNormLanes) {
    for (int lane = 0; lane < kNormLanes; ++lane) {
      lanes[lane] += x[i + lane] * y[i + lane];
    }
  }
  return lane_sum(lanes);
}

// out[o] = sum over i of matrix[o][i] x[i].
void multiply_small(const float* matrix, int64_t outputs, const float* x, int64_t inputs,
                    float* out) {
  for (int64_t output = 0; output < outputs; ++output) {
    out[output] = 0.0f;
    for (int64_t i = 0; i < inputs; ++i) {
      out[output] += matrix[output * inputs + i] * x[i];
    }
  }
}

// Computes how much `x` has of each learned modality, of which there are as many as streams.
void find_modalities(const Workers& workers, const HearthModel& model, const HearthLayer& layer,
                     const float* x, float* scratch, float* modalities) {
  const int64_t size = model.hidden;
  workers.kernels.norm_row(
      {Bits::kFloat32, NormKind::kRms, model.norm_eps, layer.altup.norm, nullptr, size}, x,
      scratch);
  for (int64_t each = 0; each < model.streams.count; ++each) {
    modalities[each] = dot(layer.altup.router + each * size, scratch, size);
  }
  soften(modalities, model.streams.count, 1.0f);
}

}  // namespace

void Streams::begin(Workers& workers, const HearthModel& model, const float* hidden,
                    const char* rows, int64_t num_tokens) {
  const int64_t size = model.hidden;
  grow(streams_, num_tokens * width(model));
  grow(scratch_, num_tokens * size);
  LinearCall call = linear_call(model, model.streams.in, rows, num_tokens, Finish::kStore, 1.0f,
                                streams_.data() + size);
  call.out_stride = width(model);
  workers.multiply(call);
  workers.each_row(num_tokens, [&](int64_t token) {
    float* const streams = streams_.data() + token * width(model);
    std::copy_n(hidden + token * size, size, streams);
    for (int64_t stream = 1; stream < model.streams.count; ++stream) {
      match(streams, size, streams + stream * size);
    }
  });
}

void Streams::predict(Workers& workers, const HearthModel& model, const HearthLayer& layer,
                      float* hidden, int64_t num_tokens) {
  const int64_t count = model.streams.count;
  const int64_t size = model.hidden;
  workers.each_row(num_tokens, [&](int64_t token) {
    float* const streams = streams_.data() + token * width(model);
    float modalities[kMaxStreams] = {};
    float mix[kMaxStreams * kMaxStreams] = {};
    find_modalities(workers, model, layer, streams, scratch_.data() + token * size, modalities);
    multiply_small(layer.altup.predict, count * count, modalities, count, mix);
    for (int64_t first = 0; first < size; first += kGroup) {
      float before[kMaxStreams][kGroup];
      for (int64_t from = 0; from < count; ++from) {
        std::copy_n(streams + from * size + first, kGroup, before[from]);
      }
      for (int64_t to = 0; to < count; ++to) {
        float* const after = streams + to * size + first;
        for (int64_t from = 0; from < count; ++from) {
          const float share = mix[to * count + from];
          for (int i = 0; i < kGroup; ++i) {
            after[i] += share * before[from][i];
          }
        }
      }
    }
    std::copy_n(streams, size, hidden + token * size);
  });
}

void Streams::correct(Workers& workers, const HearthModel& model, const HearthLayer& layer,
                      float* hidden, int64_t num_tokens) {
  const int64_t count = model.streams.count;
  const int64_t size = model.hidden;
  workers.each_row(num_tokens, [&](int64_t token) {
    float* const streams = streams_.data() + token * width(model);
    float* const made = hidden + token * size;
    float* const news = scratch_.data() + token * size;
    float modalities[kMaxStreams] = {};
    float factors[kMaxStreams] = {};
    find_modalities(workers, model, layer, made, news, modalities);
    multiply_small(layer.altup.correct, count, modalities, count, factors);
    for (int64_t i = 0; i < size; ++i) {
      news[i] = made[i] - streams[i];
    }
    for (int64_t stream = 0; stream < count; ++stream) {
      float* const corrected = streams + stream * size;
      for (int64_t i = 0; i < size; ++i) {
        corrected[i] += (1.0f + factors[stream]) * news[i];
      }
    }
    for (int64_t i = 0; i < size; ++i) {
      made[i] = streams[i] * layer.altup.scale[i];
    }
  });
}

void Streams::add(Workers& workers, const HearthModel& model, const float* made,
                  int64_t num_tokens) {
  const int64_t size = model.hidden;
  workers.each_row(num_tokens, [&](int64_t token) {
    float* const streams = streams_.data() + token * width(model);
    const float* const row = made + token * size;
    for (int64_t stream = 1; stream < model.streams.count; ++stream) {
      for (int64_t i = 0; i < size; ++i) {
        streams[stream * size + i] += row[i];
      }
    }
  });
}

void Streams::end(Workers& workers, const HearthModel& model, float* hidden, int64_t num_tokens) {
  const int64_t count = model.streams.count;
  const int64_t size = model.hidden;
  const int64_t row = row_bytes(model, size);
  grow(rows_, (count - 1) * num_tokens * row);
  workers.each_row(num_tokens, [&](int64_t token) {
    for (int64_t stream = 1; stream < count; ++stream) {
      workers.kernels.prepare_row(
          bits(model), streams_.data() + token * width(model) + stream * size, size / kGroup,
          rows_.data() + ((stream - 1) * num_tokens + token) * row);
    }
  });
  std::vector<LinearCall> calls;
  for (int64_t stream = 1; stream < count; ++stream) {
    calls.push_back(linear_call(model, one_of(model.streams.out, count - 1, stream - 1),
                                rows_.data() + (stream - 1) * num_tokens * row, num_tokens,
                                Finish::kStore, 1.0f, streams_.data() + stream * size));
    calls.back().out_stride = width(model);
  }
  workers.multiply(calls);
  workers.each_row(num_tokens, [&](int64_t token) {
    float* const streams = streams_.data() + token * width(model);
    float* const joined = hidden + token * size;
    std::copy_n(streams, size, joined);
    for (int64_t stream = 1; stream < count; ++stream) {
      match(streams, size, streams + stream * size);
      for (int64_t i = 0; i < size; ++i) {
        joined[i] += streams[stream * size + i];
      }
    }
    for (int64_t i = 0; i < size; ++i) {
      joined[i] /= static_cast<float>(count);
    }
  });
}

void Streams::move(const HearthModel& model, int64_t from, int64_t to) {
  std::copy_n(streams_.data() + from * width(model), width(model),
              streams_.data() + to * width(model));
}

}  // namespace hearth
