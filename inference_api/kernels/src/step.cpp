#include "step.h"

#include <algorithm>

#include "grow.h"
#include "model_calls.h"
#include "soften.h"
#include "unpack.h"

namespace hearth {
namespace {

constexpr int64_t kMaxTokens = 512;  // in one part: bounds the memory

int64_t width(const HearthModel& model, int64_t heads) { return heads * model.head_dim; }

int64_t qkv_width(const HearthModel& model) {
  return width(model, model.num_heads + 2 * model.num_kv_heads);
}

void embed(const HearthModel& model, int64_t token, float* out) {
  unpack_row(static_cast<Bits>(model.embedding_bits), model.embedding, model.hidden / kGroup, token,
             out);
  for (int64_t i = 0; i < model.hidden; ++i) {
    out[i] *= model.embedding_multiplier;
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

void Step::run(Workers& workers, const HearthModel& model, const HearthBatch& batch) {
  reserve(model, std::min(batch.num_tokens, kMaxTokens));
  int64_t output = 0;
  for (int64_t first = 0; first < batch.num_tokens; first += kMaxTokens) {
    const Part part = {batch, first, std::min(batch.num_tokens - first, kMaxTokens)};
    run_part(workers, model, part);
    if (batch.after != nullptr) {
      std::copy_n(hidden_.data(), part.count * model.hidden, batch.after + first * model.hidden);
    }
    if (batch.hidden != nullptr) {
      write_hidden(workers, model, part);
    }
    const int64_t* const begin = batch.outputs + output;
    const int64_t count =
        std::lower_bound(begin, batch.outputs + batch.num_outputs, first + part.count) - begin;
    if (count == 0) {
      continue;
    }
    float* const logits = batch.logits + output * model.head.outputs;
    const NormCall norm = norm_call(model, model.final_norm);
    workers.each_row(count, [&](int64_t row) {
      workers.kernels.norm_row(norm, hidden_.data() + (begin[row] - first) * model.hidden,
                               normed_.data() + row * row_bytes(model, model.hidden));
    });
    workers.multiply(linear_call(model, model.head, normed_.data(), count, Finish::kStore,
                                 1.0f / model.logits_divisor, logits));
    if (model.logits_softcap != 0.0f) {
      workers.each_row(count, [&](int64_t row) {
        soften(logits + row * model.head.outputs, model.head.outputs, model.logits_softcap);
      });
    }
    output += count;
  }
}

// What the head's products would take if its weights were float32.
void Step::write_hidden(Workers& workers, const HearthModel& model, const Part& part) {
  NormCall norm = norm_call(model, model.final_norm);
  norm.bits = Bits::kFloat32;
  workers.each_row(part.count, [&](int64_t token) {
    workers.kernels.norm_row(norm, hidden_.data() + token * model.hidden,
                             part.batch.hidden + (part.first + token) * model.hidden);
  });
}

void Step::run_part(Workers& workers, const HearthModel& model, const Part& part) {
  workers.each_row(part.count, [&](int64_t token) {
    float* const hidden = hidden_.data() + token * model.hidden;
    const int64_t index = part.first + token;
    if (part.batch.before == nullptr) {
      embed(model, part.batch.ids[index], hidden);
    } else {
      std::copy_n(part.batch.before + index * model.hidden, model.hidden, hidden);
    }
    lengths_[static_cast<size_t>(token)] = part.batch.positions[index] + 1;
  });
  branches_ = find_branches(part);
  for (int64_t layer = 0; layer < model.num_layers; ++layer) {
    run_layer(workers, model, model.layers[layer], part);
  }
}

// A token's branch begins behind the last of the tokens it follows that is in its own slot: up to
// that one positions and slots are the same.
const Branch* Step::find_branches(const Part& part) {
  const HearthBatch& batch = part.batch;
  if (batch.parents == nullptr) {
    return nullptr;
  }
  branch_memory_.clear();
  branch_slots_.clear();
  std::vector<size_t> begins;
  for (int64_t token = part.first; token < part.first + part.count; ++token) {
    begins.push_back(branch_slots_.size());
    for (int64_t at = token; at >= 0 && batch.slots[at] != batch.positions[at];
         at = batch.parents[at]) {
      branch_slots_.push_back(batch.slots[at]);
    }
    const auto begin = branch_slots_.begin() + static_cast<int64_t>(begins.back());
    const int64_t size = branch_slots_.end() - begin;
    std::reverse(begin, branch_slots_.end());
    branch_memory_.push_back({size == 0 ? kNoBranch : batch.positions[token] + 1 - size, nullptr});
  }
  for (size_t i = 0; i < begins.size(); ++i) {
    branch_memory_[i].slots = branch_slots_.data() + begins[i];
  }
  return branch_memory_.data();
}

// Sequential: the MLP reads what attention has added to. Parallel: both read the same, so that both
// norms are taken first; without one of its own the MLP shares attention's. Where there is no norm
// at all the residual is read as it is. Experts are sequential, and have a norm before them, which
// the MLP that all tokens share reads too.
void Step::run_layer(Workers& workers, const HearthModel& model, const HearthLayer& layer,
                     const Part& part) {
  const auto norm_rows = [&](const HearthNorm& norm, std::vector<char>& rows) {
    const NormCall call = norm_call(model, norm);
    workers.each_row(part.count, [&](int64_t token) {
      const float* const hidden = hidden_.data() + token * model.hidden;
      char* const row = rows.data() + token * row_bytes(model, model.hidden);
      if (norm.weight == nullptr) {
        workers.kernels.prepare_row(bits(model), hidden, model.hidden / kGroup, row);
      } else {
        workers.kernels.norm_row(call, hidden, row);
      }
    });
  };
  const bool shares_norm = model.is_parallel != 0 && layer.mlp_norm.weight == nullptr;
  norm_rows(layer.attention_norm, normed_);
  if (model.is_parallel && !shares_norm) {
    norm_rows(layer.mlp_norm, mlp_normed_);
  }
  attend(workers, model, layer, part);
  const bool has_experts = layer.router.outputs > 0;
  const HearthLinear& mlp_up = has_experts ? layer.shared_up : layer.up;
  const HearthLinear& mlp_down = has_experts ? layer.shared_down : layer.down;
  if (!model.is_parallel && mlp_up.outputs > 0) {
    norm_rows(layer.mlp_norm, mlp_normed_);
  }
  if (has_experts) {
    experts_.run(workers, model, layer, hidden_.data(), part.count);
  }
  if (mlp_up.outputs == 0) {
    return;
  }
  LinearCall up = linear_call(model, mlp_up, (shares_norm ? normed_ : mlp_normed_).data(),
                              part.count, Finish::kActivate, 1.0f, nullptr);
  up.is_gated = model.is_gated != 0;
  up.activated = activated_.data();
  workers.multiply(up);
  add_product(workers, model, mlp_down, activated_, layer.mlp_output_norm, part.count);
}

// Adds a product to hidden_, where there is a norm the norm of it.
void Step::add_product(Workers& workers, const HearthModel& model, const HearthLinear& linear,
                       const std::vector<char>& rows, const HearthNorm& norm, int64_t num_rows) {
  const float factor = model.residual_multiplier;
  if (norm.weight == nullptr) {
    workers.multiply(
        linear_call(model, linear, rows.data(), num_rows, Finish::kAdd, factor, hidden_.data()));
    return;
  }
  grow(product_, num_rows * model.hidden);
  workers.multiply(
      linear_call(model, linear, rows.data(), num_rows, Finish::kStore, 1.0f, product_.data()));
  NormCall call = norm_call(model, norm);
  call.bits = Bits::kFloat32;
  workers.each_row(num_rows, [&](int64_t row) {
    float* const product = product_.data() + row * model.hidden;
    float* const hidden = hidden_.data() + row * model.hidden;
    workers.kernels.norm_row(call, product, product);
    for (int64_t i = 0; i < model.hidden; ++i) {
      hidden[i] += factor * product[i];
    }
  });
}

// From normed_ to what attention adds to hidden_.
void Step::attend(Workers& workers, const HearthModel& model, const HearthLayer& layer,
                  const Part& part) {
  const int64_t stride = qkv_width(model);
  const int64_t attended_width = width(model, model.num_heads);
  const auto type = static_cast<CacheType>(model.cache_type);
  const int64_t slot = slot_elements(type, model.head_dim);
  const int64_t rotary_dim = layer.cos == nullptr ? 0 : model.rotary_dim;
  workers.multiply(
      linear_call(model, layer.qkv, normed_.data(), part.count, Finish::kStore, 1.0f, qkv_.data()));
  workers.each_row(part.count, [&](int64_t token) {
    const int64_t index = part.first + token;
    const int64_t position = part.batch.positions[index];
    const int64_t place =
        part.batch.rows[index] * model.row_stride + part.batch.slots[index] * slot;
    workers.kernels.write_heads(
        {qkv_.data() + token * stride, layer.qk_norm, model.is_qk_norm_whole != 0, model.norm_eps,
         layer.cos + position * rotary_dim, layer.sin + position * rotary_dim, rotary_dim,
         model.num_heads, model.num_kv_heads, model.head_dim, type, at(model, layer.keys, place),
         at(model, layer.values, place), model.head_stride});
  });
  workers.attend({qkv_.data(), stride, type, layer.keys, layer.values, model.row_stride,
                  model.head_stride, part.batch.rows + part.first, lengths_.data(), branches_,
                  part.count, model.num_kv_heads, model.num_heads / model.num_kv_heads,
                  model.head_dim, layer.window, model.attention_scale, layer.sinks,
                  attended_.data()});
  workers.each_row(part.count, [&](int64_t token) {
    workers.kernels.prepare_row(bits(model), attended_.data() + token * attended_width,
                                attended_width / kGroup,
                                prepared_.data() + token * row_bytes(model, attended_width));
  });
  add_product(workers, model, layer.out, prepared_, layer.attention_output_norm, part.count);
}

}  // namespace hearth
