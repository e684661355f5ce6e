#include "step.h"

#include <algorithm>

#include "half.h"

namespace hearth {
namespace {

constexpr int64_t kMaxTokens = 512;  // in one part: bounds the memory

template <class T>
void grow(std::vector<T>& memory, int64_t size) {
  if (memory.size() < static_cast<size_t>(size)) {
    memory.resize(static_cast<size_t>(size));
  }
}

int64_t width(const HearthModel& model, int64_t heads) { return heads * model.head_dim; }

int64_t qkv_width(const HearthModel& model) {
  return width(model, model.num_heads + 2 * model.num_kv_heads);
}

Bits bits(const HearthModel& model) { return static_cast<Bits>(model.bits); }

// Bytes of a row of `size` activations as products take it.
int64_t row_bytes(const HearthModel& model, int64_t size) {
  return size / kGroup * group_bytes(bits(model));
}

NormCall norm_call(const HearthModel& model, const HearthNorm& norm) {
  return {bits(model), static_cast<NormKind>(model.norm), model.norm_eps, norm.weight, norm.bias,
          model.hidden};
}

LinearCall linear_call(const HearthModel& model, const HearthLinear& linear,
                       const std::vector<char>& rows, int64_t num_rows, Finish finish, float factor,
                       float* out) {
  return {bits(model),
          linear.packed,
          linear.bias,
          linear.outputs,
          linear.inputs / kGroup,
          rows.data(),
          num_rows,
          nullptr,
          finish,
          factor,
          out,
          static_cast<Activation>(model.activation),
          false,
          nullptr};
}

void embed(const HearthModel& model, int64_t token, float* out) {
  const int64_t first = token * model.hidden;
  for (int64_t i = 0; i < model.hidden; ++i) {
    const float value =
        static_cast<SourceType>(model.embedding_type) == SourceType::kBFloat16
            ? bfloat16_to_float(static_cast<const uint16_t*>(model.embedding)[first + i])
            : static_cast<const float*>(model.embedding)[first + i];
    out[i] = value * model.embedding_multiplier;
  }
}

void* at(const HearthModel& model, void* cache, int64_t element) {
  constexpr int64_t kBytes[] = {4, 2, 1};  // by CacheType
  return static_cast<char*>(cache) + element * kBytes[model.cache_type];
}

}  // namespace

void Step::reserve(const HearthModel& model, int64_t num_tokens) {
  grow(hidden_, num_tokens * model.hidden);
  grow(qkv_, num_tokens * qkv_width(model));
  grow(attended_, num_tokens * width(model, model.num_heads));
  grow(normed_, num_tokens * row_bytes(model, model.hidden));
  grow(mlp_normed_, num_tokens * row_bytes(model, model.hidden));
  grow(prepared_, num_tokens * row_bytes(model, width(model, model.num_heads)));
  grow(activated_, num_tokens * row_bytes(model, model.ffn));
  grow(lengths_, num_tokens);
}

void Step::run(Workers& workers, const HearthModel& model, Tokens tokens, int64_t num_outputs,
               float* logits) {
  reserve(model, std::min(tokens.count, kMaxTokens));
  const int64_t first_output = tokens.count - num_outputs;
  for (int64_t first = 0; first < tokens.count; first += kMaxTokens) {
    const int64_t count = std::min(tokens.count - first, kMaxTokens);
    run_part(workers, model,
             {tokens.ids + first, tokens.rows + first, tokens.positions + first, count});
    const int64_t skipped = std::max<int64_t>(first_output - first, 0);
    if (skipped >= count) {
      continue;
    }
    const NormCall norm = norm_call(model, model.final_norm);
    workers.each_row(count - skipped, [&](int64_t row) {
      workers.kernels.norm_row(norm, hidden_.data() + (skipped + row) * model.hidden,
                               normed_.data() + row * row_bytes(model, model.hidden));
    });
    workers.multiply(linear_call(model, model.head, normed_, count - skipped, Finish::kStore,
                                 1.0f / model.logits_divisor,
                                 logits + (first + skipped - first_output) * model.head.outputs));
  }
}

void Step::run_part(Workers& workers, const HearthModel& model, const Tokens& tokens) {
  workers.each_row(tokens.count, [&](int64_t token) {
    embed(model, tokens.ids[token], hidden_.data() + token * model.hidden);
    lengths_[static_cast<size_t>(token)] = tokens.positions[token] + 1;
  });
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    run_layer(workers, model, model.layers[layer], tokens);
  }
}

// Sequential: the MLP reads what attention has added to. Parallel: both read the same, so that both
// norms are taken first; without one of its own the MLP shares attention's.
void Step::run_layer(Workers& workers, const HearthModel& model, const HearthLayer& layer,
                     const Tokens& tokens) {
  const auto norm_rows = [&](const HearthNorm& norm, std::vector<char>& rows) {
    const NormCall call = norm_call(model, norm);
    workers.each_row(tokens.count, [&](int64_t token) {
      workers.kernels.norm_row(call, hidden_.data() + token * model.hidden,
                               rows.data() + token * row_bytes(model, model.hidden));
    });
  };
  const bool has_mlp_norm = layer.mlp_norm.weight != nullptr;
  norm_rows(layer.attention_norm, normed_);
  if (model.is_parallel && has_mlp_norm) {
    norm_rows(layer.mlp_norm, mlp_normed_);
  }
  attend(workers, model, layer, tokens);
  if (!model.is_parallel) {
    norm_rows(layer.mlp_norm, mlp_normed_);
  }
  LinearCall up = linear_call(model, layer.up, has_mlp_norm ? mlp_normed_ : normed_, tokens.count,
                              Finish::kActivate, 1.0f, nullptr);
  up.is_gated = model.is_gated != 0;
  up.activated = activated_.data();
  workers.multiply(up);
  workers.multiply(linear_call(model, layer.down, activated_, tokens.count, Finish::kAdd,
                               model.residual_multiplier, hidden_.data()));
}

// From normed_ to what attention adds to hidden_.
void Step::attend(Workers& workers, const HearthModel& model, const HearthLayer& layer,
                  const Tokens& tokens) {
  const int64_t stride = qkv_width(model);
  const int64_t attended_width = width(model, model.num_heads);
  const auto type = static_cast<CacheType>(model.cache_type);
  const int64_t slot = slot_elements(type, model.head_dim);
  workers.multiply(
      linear_call(model, layer.qkv, normed_, tokens.count, Finish::kStore, 1.0f, qkv_.data()));
  workers.each_row(tokens.count, [&](int64_t token) {
    const int64_t position = tokens.positions[token];
    const int64_t place = tokens.rows[token] * model.row_stride + position * slot;
    workers.kernels.write_heads({
        qkv_.data() + token * stride,
        layer.qk_norm,
        model.norm_eps,
        model.cos + position * model.head_dim,
        model.sin + position * model.head_dim,
        model.num_heads,
        model.num_kv_heads,
        model.head_dim,
        type,
        at(model, layer.keys, place),
        at(model, layer.values, place),
        model.head_stride,
    });
  });
  workers.attend({qkv_.data(), stride, type, layer.keys, layer.values, model.row_stride,
                  model.head_stride, tokens.rows, lengths_.data(), tokens.count, model.num_kv_heads,
                  model.num_heads / model.num_kv_heads, model.head_dim, layer.window,
                  model.attention_scale, attended_.data()});
  workers.each_row(tokens.count, [&](int64_t token) {
    workers.kernels.prepare_row(bits(model), attended_.data() + token * attended_width,
                                attended_width / kGroup,
                                prepared_.data() + token * row_bytes(model, attended_width));
  });
  workers.multiply(linear_call(model, layer.out, prepared_, tokens.count, Finish::kAdd,
                               model.residual_multiplier, hidden_.data()));
}

}  // namespace hearth
