#include "recurrent.h"

#include <algorithm>

#include "grow.h"
#include "model_calls.h"

namespace hearth {
namespace {

// Returns the place of the convolution's inputs in a row of `in`'s outputs.
int64_t inputs_at(const HearthRecurrent& layer) {
  const bool is_mamba2 = static_cast<Mixer>(layer.kind) == Mixer::kMamba2;
  return is_mamba2 ? layer.heads * layer.value_dim : 0;
}

// Returns the floats of a token in mixed_: outputs of `in`, then of `gates` and `forgets`.
int64_t mixed_width(const HearthRecurrent& layer) {
  return layer.in.outputs + layer.gates.outputs + layer.forgets.outputs;
}

}  // namespace

void Recurrent::begin(Workers& workers, const HearthModel& model, const int64_t* rows,
                      const int64_t* positions, int64_t num_tokens) {
  const int64_t row_floats = model.recurrent.row_floats;
  num_tokens_ = num_tokens;
  runs_.clear();
  for (int64_t token = 0; token < num_tokens; ++token) {
    if (token > 0 && rows[token] == rows[token - 1]) {
      ++runs_.back().count;
    } else {
      float* const block = model.recurrent.base + rows[token] * row_floats;
      const auto same_row = [&](const Run& run) { return run.block == block; };
      const auto before = std::find_if(runs_.rbegin(), runs_.rend(), same_row);
      float* const log = model.recurrent.log + rows[token] * model.recurrent.log_floats;
      runs_.push_back({block, log, token, 1, 0, before == runs_.rend() ? 0 : before->wave + 1});
    }
  }
  has_guesses_ = false;
  for (Run& run : runs_) {
    const int64_t end = model.recurrent.kept[rows[run.first]] - positions[run.first];
    run.kept = std::min(run.count, end);
    has_guesses_ = has_guesses_ || run.kept < run.count;
  }
  std::stable_sort(runs_.begin(), runs_.end(),
                   [](const Run& one, const Run& other) { return one.wave < other.wave; });
  workers.each_row(static_cast<int64_t>(runs_.size()), [&](int64_t index) {
    const Run& run = runs_[static_cast<size_t>(index)];
    if (positions[run.first] == 0) {
      std::fill_n(run.block, row_floats, 0.0f);
    }
  });
}

void Recurrent::run(Workers& workers, const HearthModel& model, const HearthLayer& layer,
                    const char* normed, const char* exact, float* out) {
  const HearthRecurrent& recurrent = layer.recurrent;
  grow(mixed_, num_tokens_ * mixed_width(recurrent));
  LinearCall in =
      linear_call(model, recurrent.in, normed, num_tokens_, Finish::kStore, 1.0f, mixed_.data());
  in.out_stride = mixed_width(recurrent);
  workers.multiply(in);
  if (recurrent.steps.outputs > 0) {
    grow(steps_, num_tokens_ * recurrent.steps.outputs);
    workers.multiply(linear_call(model, recurrent.steps, exact, num_tokens_, Finish::kStore, 1.0f,
                                 steps_.data()));
  }
  multiply_latents(workers, model, recurrent);
  mix(workers, recurrent, out);
  if (has_guesses_) {
    write_log(workers, model, recurrent);
  }
}

// Multiplies the latents in steps_, which follow the corrections, into their parts of mixed_.
void Recurrent::multiply_latents(Workers& workers, const HearthModel& model,
                                 const HearthRecurrent& layer) {
  int64_t latent = layer.heads;
  float* out = mixed_.data() + layer.in.outputs;
  for (const HearthLinear* linear : {&layer.gates, &layer.forgets}) {
    if (linear->outputs == 0) {
      continue;
    }
    const auto form = static_cast<Bits>(linear->bits);
    const int64_t groups = linear->inputs / kGroup;
    const int64_t row = groups * group_bytes(form);
    grow(latents_, num_tokens_ * row);
    workers.each_row(num_tokens_, [&](int64_t token) {
      workers.kernels.prepare_row(form, steps_.data() + token * layer.steps.outputs + latent,
                                  groups, latents_.data() + token * row);
    });
    LinearCall call =
        linear_call(model, *linear, latents_.data(), num_tokens_, Finish::kStore, 1.0f, out);
    call.out_stride = mixed_width(layer);
    workers.multiply(call);
    latent += linear->inputs;
    out += linear->outputs;
  }
}

// Computes `out` from mixed_ and steps_, and changes the rows' states.
void Recurrent::mix(Workers& workers, const HearthRecurrent& layer, float* out) {
  if (static_cast<Mixer>(layer.kind) == Mixer::kShortConv) {
    run_short_conv(workers, layer, out);
  } else {
    run_delta(workers, layer, out);
  }
}

void Recurrent::write_log(Workers& workers, const HearthModel& model,
                          const HearthRecurrent& layer) {
  workers.each_row(static_cast<int64_t>(runs_.size()), [&](int64_t index) {
    const Run& run = runs_[static_cast<size_t>(index)];
    const int64_t first = run.first + run.kept;
    const int64_t count = run.count - run.kept;
    if (count == 0) {
      return;
    }
    float* const log = run.log + layer.log_at;
    const int64_t width = mixed_width(layer);
    std::copy_n(mixed_.data() + first * width, count * width, log);
    std::copy_n(steps_.data() + first * layer.steps.outputs, count * layer.steps.outputs,
                log + model.recurrent.log_tokens * width);
  });
}

void Recurrent::keep(Workers& workers, const HearthModel& model, int64_t row, int64_t count) {
  const HearthRecurrentRows& rows = model.recurrent;
  float* const block = rows.base + row * rows.row_floats;
  runs_.assign(1, {block, rows.log + row * rows.log_floats, 0, count, count, 0});
  num_tokens_ = count;
  for (int64_t index = 0; index < model.num_layers; ++index) {
    const HearthRecurrent& layer = model.layers[index].recurrent;
    if (static_cast<Mixer>(layer.kind) == Mixer::kAttention) {
      continue;
    }
    const float* const log = runs_[0].log + layer.log_at;
    const int64_t width = mixed_width(layer);
    grow(mixed_, count * width);
    grow(steps_, count * layer.steps.outputs);
    grow(replayed_, count * layer.out.inputs);
    std::copy_n(log, count * width, mixed_.data());
    std::copy_n(log + rows.log_tokens * width, count * layer.steps.outputs, steps_.data());
    mix(workers, layer, replayed_.data());
  }
}

void Recurrent::run_short_conv(Workers& workers, const HearthRecurrent& layer, float* out) {
  const int64_t channels = layer.conv_dim;
  const int64_t parts = (channels + kChannels - 1) / kChannels;
  each_wave([&](const Run* runs, int64_t num_runs) {
    workers.each_row(num_runs * parts, [&](int64_t task) {
      const Run& run = runs[task / parts];
      const int64_t first = task % parts * kChannels;
      const ShortConvCall call = {layer.conv,
                                  layer.conv_bias,
                                  channels,
                                  layer.conv_width,
                                  mixed_.data() + run.first * layer.in.outputs,
                                  run.count,
                                  run.kept,
                                  run.block + layer.tail_at,
                                  out + run.first * channels};
      workers.kernels.short_conv(call, first, std::min<int64_t>(first + kChannels, channels));
    });
  });
}

void Recurrent::run_delta(Workers& workers, const HearthRecurrent& layer, float* out) {
  const int64_t stride = mixed_width(layer);
  const int64_t width = layer.heads * layer.value_dim;
  const bool is_mamba2 = static_cast<Mixer>(layer.kind) == Mixer::kMamba2;
  each_wave([&](const Run* runs, int64_t num_runs) {
    workers.pool.run(num_runs * layer.heads, [&](int64_t task) {
      const Run& run = runs[task / layer.heads];
      const float* const rows = mixed_.data() + run.first * stride;
      const float* const inputs = rows + inputs_at(layer);
      DeltaCall call = {layer,
                        inputs,
                        rows + layer.conv_dim,
                        steps_.data() + run.first * layer.steps.outputs,
                        stride,
                        layer.steps.outputs,
                        run.count,
                        run.kept,
                        run.block + layer.tail_at,
                        run.block + layer.state_at,
                        out + run.first * width};
      if (is_mamba2) {
        call.gates = rows;
        call.steps = inputs + layer.conv_dim;
        call.step_stride = stride;
      }
      workers.kernels.delta_head(call, task % layer.heads);
    });
    workers.each_row(num_runs, [&](int64_t index) { move_tail(layer, runs[index]); });
  });
  if (is_mamba2 && layer.head_norm != nullptr) {
    const int64_t size = width / layer.key_heads;
    workers.each_row(num_tokens_ * layer.key_heads, [&](int64_t index) {
      const float* const weight = layer.head_norm + index % layer.key_heads * size;
      float* const group = out + index * size;
      workers.kernels.norm_row(
          {Bits::kFloat32, NormKind::kRms, layer.norm_eps, weight, nullptr, size}, group, group);
    });
  }
}

// Writes the convolution's last inputs to the tail; after a short run, some were there already.
void Recurrent::move_tail(const HearthRecurrent& layer, const Run& run) const {
  float* const tail = run.block + layer.tail_at;
  const int64_t size = layer.conv_width - 1;
  for (int64_t i = 0; i < size; ++i) {
    const int64_t token = run.kept - size + i;
    const float* const input =
        token < 0 ? tail + (size + token) * layer.conv_dim
                  : mixed_.data() + (run.first + token) * mixed_width(layer) + inputs_at(layer);
    std::copy_n(input, layer.conv_dim, tail + i * layer.conv_dim);
  }
}

}  // namespace hearth
