#include "recurrent.h"

#include <algorithm>

#include "grow.h"
#include "model_calls.h"

namespace hearth {

void Recurrent::begin(Workers& workers, const HearthModel& model, const int64_t* rows,
                      const int64_t* positions, int64_t num_tokens) {
  const int64_t row_floats = model.recurrent.row_floats;
  num_tokens_ = num_tokens;
  runs_.clear();
  for (int64_t token = 0; token < num_tokens; ++token) {
    if (token > 0 && rows[token] == rows[token - 1]) {
      ++runs_.back().count;
    } else {
      runs_.push_back({model.recurrent.base + rows[token] * row_floats, token, 1});
    }
  }
  workers.each_row(static_cast<int64_t>(runs_.size()), [&](int64_t index) {
    const Run& run = runs_[static_cast<size_t>(index)];
    if (positions[run.first] == 0) {
      std::fill_n(run.block, row_floats, 0.0f);
    }
  });
}

void Recurrent::run(Workers& workers, const HearthModel& model, const HearthLayer& layer,
                    const char* normed, float* out) {
  const HearthRecurrent& recurrent = layer.recurrent;
  const int64_t channels = recurrent.conv_dim;
  const int64_t stride = recurrent.in.outputs;
  grow(mixed_, num_tokens_ * stride);
  workers.multiply(
      linear_call(model, recurrent.in, normed, num_tokens_, Finish::kStore, 1.0f, mixed_.data()));
  const int64_t parts = (channels + kChannels - 1) / kChannels;
  workers.each_row(static_cast<int64_t>(runs_.size()) * parts, [&](int64_t task) {
    const Run& run = runs_[static_cast<size_t>(task / parts)];
    const int64_t first = task % parts * kChannels;
    const ShortConvCall call = {recurrent.conv,
                                recurrent.conv_bias,
                                channels,
                                recurrent.conv_width,
                                mixed_.data() + run.first * stride,
                                run.count,
                                run.block + recurrent.tail_at,
                                out + run.first * channels};
    workers.kernels.short_conv(call, first, std::min<int64_t>(first + kChannels, channels));
  });
}

}  // namespace hearth
