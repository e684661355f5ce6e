#include "step.h"

#include <algorithm>

#include "activation.h"
#include "grow.h"
#include "model_calls.h"
#include "norm.h"
#include "soften.h"
#include "unpack.h"

namespace hearth {
namespace {

constexpr int64_t kMaxTokens = 512;  // tokens of a part: bounds the memory
constexpr float kLatentEps = 1e-6f;  // LATENT_NORM_EPS in engine/
constexpr float kInverseRoot2 = 0.707106781f;

// Returns the number of floats of a token's queries and their gates.
int64_t queries_width(const HearthModel& model, const HearthLayer& layer) {
  return (model.has_output_gates ? 2 : 1) * model.num_heads * layer.head_dim;
}

bool has_latents(const HearthLayer& layer) { return layer.k_b.outputs > 0; }

int64_t key_dim(const HearthLayer& layer) {
  return has_latents(layer) ? layer.kv_a.outputs : layer.head_dim;
}

// Returns the size of a head's result of attention. With latents, it is a sum of latents.
int64_t attended_dim(const HearthLayer& layer) {
  return has_latents(layer) ? key_dim(layer) - layer.rotary_dim : layer.value_dim;
}

int64_t qkv_width(const HearthModel& model, const HearthLayer& layer) {
  const int64_t kinds = has_latents(layer) ? 1 : 2;
  return queries_width(model, layer) + kinds * layer.num_kv_heads * key_dim(layer);
}

// Returns the end of a part of the batch that begins at `first`. With recurrent layers, it is not
// within a row's guesses, which are fewer than a part has and do not change the row's state.
int64_t part_end(const HearthModel& model, const HearthBatch& batch, int64_t first) {
  int64_t end = std::min(batch.num_tokens, first + kMaxTokens);
  if (model.recurrent.base == nullptr) {
    return end;
  }
  const auto is_within_guesses = [&] {
    return end < batch.num_tokens && batch.rows[end] == batch.rows[end - 1] &&
           batch.positions[end] >= model.recurrent.kept[batch.rows[end]];
  };
  while (end > first + 1 && is_within_guesses()) {
    --end;
  }
  return end;
}

NormCall latent_norm(Bits bits, const float* weight, int64_t rank) {
  return {bits, NormKind::kRms, kLatentEps, weight, nullptr, rank};
}

bool is_recurrent(const HearthLayer& layer) {
  return static_cast<Mixer>(layer.recurrent.kind) != Mixer::kAttention;
}

bool attends(const HearthLayer& layer) { return layer.out.outputs > 0; }

// Returns whether the MLP has the same input as attention.
bool shares_norm(const HearthModel& model, const HearthLayer& layer) {
  return model.is_parallel != 0 && layer.mlp_norm.weight == nullptr;
}

// Returns the last layer that remembers tokens. After it, only outputs need to be computed.
int64_t cut_layer(const HearthModel& model) {
  int64_t layer = model.num_layers - 1;
  const auto remembers = [&] {
    const HearthLayer& each = model.layers[layer];
    return is_recurrent(each) || (attends(each) && !each.is_kv_shared);
  };
  while (layer > 0 && !remembers()) {
    --layer;
  }
  return layer;
}

void embed(const HearthModel& model, int64_t token, float* out) {
  unpack_row(static_cast<Bits>(model.embedding_bits), model.embedding, model.hidden / kGroup, token,
             out);
  for (int64_t i = 0; i < model.hidden; ++i) {
    out[i] *= model.embedding_multiplier;
  }
}

}  // namespace

void Step::reserve(const HearthModel& model, int64_t num_tokens) {
  grow(hidden_, num_tokens * model.hidden);
  grow(normed_, num_tokens * row_bytes(model, model.hidden));
  grow(mlp_normed_, num_tokens * row_bytes(model, model.hidden));
  grow(rows_, num_tokens);
  grow(lengths_, num_tokens);
}

void Step::run(Workers& workers, const HearthModel& model, const HearthBatch& batch) {
  reserve(model, std::min(batch.num_tokens, kMaxTokens));
  const bool reads_all = model.num_layers == 0 || batch.after != nullptr || batch.hidden != nullptr;
  int64_t output = 0;
  for (int64_t first = 0; first < batch.num_tokens; first = part_end(model, batch, first)) {
    const int64_t count = part_end(model, batch, first) - first;
    const int64_t* const begin = batch.outputs + output;
    const int64_t* const end =
        std::lower_bound(begin, batch.outputs + batch.num_outputs, first + count);
    const Part part = {batch, first, count, begin, end - begin, reads_all};
    run_part(workers, model, part);
    if (batch.after != nullptr) {
      std::copy_n(hidden_.data(), count * model.hidden, batch.after + first * model.hidden);
    }
    if (batch.hidden != nullptr) {
      write_hidden(workers, model, part);
    }
    if (part.num_outputs > 0) {
      write_logits(workers, model, part, batch.logits + output * model.head.outputs);
    }
    output += part.num_outputs;
  }
}

void Step::write_logits(Workers& workers, const HearthModel& model, const Part& part,
                        float* logits) {
  const NormCall norm = norm_call(model, model.final_norm);
  workers.each_row(part.num_outputs, [&](int64_t row) {
    const int64_t token = part.reads_all ? part.outputs[row] - part.first : row;
    workers.kernels.norm_row(norm, hidden_.data() + token * model.hidden,
                             normed_.data() + row * row_bytes(model, model.hidden));
  });
  workers.multiply(linear_call(model, model.head, normed_.data(), part.num_outputs, Finish::kStore,
                               1.0f / model.logits_divisor, logits));
  if (model.logits_softcap != 0.0f) {
    workers.each_row(part.num_outputs, [&](int64_t row) {
      soften(logits + row * model.head.outputs, model.head.outputs, model.logits_softcap);
    });
  }
}

// Writes the input of the output head as float32.
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
    rows_[static_cast<size_t>(token)] = part.batch.rows[index];
    lengths_[static_cast<size_t>(token)] = part.batch.positions[index] + 1;
  });
  if (model.inputs.size > 0 || has_streams(model)) {
    norm_rows(workers, model, {}, part.count, normed_);
  }
  if (model.inputs.size > 0 && model.num_layers > 0) {
    layer_inputs_.begin(workers, model, part.batch.ids + part.first, normed_.data(), part.count);
  }
  if (has_streams(model)) {
    streams_.begin(workers, model, hidden_.data(), normed_.data(), part.count);
  }
  branches_ = find_branches(part);
  if (model.recurrent.base != nullptr) {
    recurrent_.begin(workers, model, rows_.data(), part.batch.positions + part.first, part.count);
  }
  const int64_t cut = part.reads_all ? model.num_layers : cut_layer(model);
  int64_t num_tokens = part.count;
  for (int64_t layer = 0; layer < model.num_layers && num_tokens > 0; ++layer) {
    num_tokens = run_layer(workers, model, model.layers[layer], part, num_tokens, layer == cut);
  }
  if (has_streams(model) && num_tokens > 0) {
    streams_.end(workers, model, hidden_.data(), num_tokens);
  }
}

// A token's branch begins after the last of its ancestors whose slot equals its position. Up to
// that one, all slots equal positions.
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

// Writes the norm of hidden_ in the form that products take, or hidden_ itself without a norm.
void Step::norm_rows(Workers& workers, const HearthModel& model, const HearthNorm& norm,
                     int64_t num_tokens, std::vector<char>& rows) {
  const NormCall call = norm_call(model, norm);
  workers.each_row(num_tokens, [&](int64_t token) {
    const float* const hidden = hidden_.data() + token * model.hidden;
    char* const row = rows.data() + token * row_bytes(model, model.hidden);
    if (norm.weight == nullptr) {
      workers.kernels.prepare_row(bits(model), hidden, model.hidden / kGroup, row);
    } else {
      workers.kernels.norm_row(call, hidden, row);
    }
  });
}

// In a sequential layer, the MLP reads the residual after attention. In a parallel one, both read
// the same, so both norms come first; without a norm of its own, the MLP shares attention's. A
// recurrent mixer has the same input as attention.
//
// A layer that is cut remembers all tokens, and computes the rest only for outputs. Returns the
// number of tokens that are left.
int64_t Step::run_layer(Workers& workers, const HearthModel& model, const HearthLayer& layer,
                        const Part& part, int64_t num_tokens, bool is_cut) {
  if (has_streams(model)) {
    streams_.predict(workers, model, layer, hidden_.data(), num_tokens);
  }
  if (is_recurrent(layer) || attends(layer)) {
    norm_rows(workers, model, layer.attention_norm, num_tokens, normed_);
  }
  if (model.is_parallel && !shares_norm(model, layer)) {
    norm_rows(workers, model, layer.mlp_norm, num_tokens, mlp_normed_);
  }
  if (is_recurrent(layer)) {
    grow(attended_, num_tokens * layer.recurrent.out.inputs);
    const bool is_delta = layer.recurrent.steps.outputs > 0;
    const char* const exact =
        is_delta ? exact_rows(workers, model, layer.attention_norm, normed_, num_tokens) : nullptr;
    recurrent_.run(workers, model, layer, normed_.data(), exact, attended_.data());
  }
  if (attends(layer)) {
    write(workers, model, layer, part, num_tokens);
  }
  if (is_cut && part.num_outputs < num_tokens) {
    keep_outputs(model, layer, part);
    num_tokens = part.num_outputs;
  }
  if (num_tokens == 0) {
    return 0;
  }
  if (is_recurrent(layer)) {
    add_mixed(workers, model, layer, num_tokens);
  }
  const bool has_laurel = layer.laurel_in.outputs > 0;
  if (has_laurel) {
    add_laurel(workers, model, layer, num_tokens);
  }
  if (attends(layer)) {
    attend(workers, model, layer, num_tokens);
  }
  if (has_laurel) {
    scale(workers, model, kInverseRoot2, num_tokens);
  }
  add_mlp(workers, model, layer, num_tokens);
  if (has_streams(model)) {
    streams_.correct(workers, model, layer, hidden_.data(), num_tokens);
  }
  if (layer.input_gate.outputs > 0) {
    norm_rows(workers, model, {}, num_tokens, normed_);
    const std::vector<char>& rows =
        layer_inputs_.gated(workers, model, layer, normed_.data(), num_tokens);
    if (has_streams(model)) {
      std::fill_n(hidden_.data(), num_tokens * model.hidden, 0.0f);
    }
    add_product(workers, model, layer.input_out, rows, layer.input_norm, num_tokens);
    if (has_streams(model)) {
      streams_.add(workers, model, hidden_.data(), num_tokens);
    }
  }
  if (layer.output_scale != nullptr) {
    scale(workers, model, *layer.output_scale, num_tokens);
  }
  return num_tokens;
}

// Experts are sequential. The norm before them is also the shared MLP's, unless the results of both
// are normalised, each by itself and then their sum.
void Step::add_mlp(Workers& workers, const HearthModel& model, const HearthLayer& layer,
                   int64_t num_tokens) {
  const bool has_experts = layer.router.outputs > 0;
  const HearthLinear& mlp_up = has_experts ? layer.shared_up : layer.up;
  const HearthLinear& mlp_down = has_experts ? layer.shared_down : layer.down;
  if (!model.is_parallel && mlp_up.outputs > 0) {
    norm_rows(workers, model, layer.mlp_norm, num_tokens, mlp_normed_);
  }
  const float* const shares = shared_shares(workers, model, layer, num_tokens);
  const bool is_joined = layer.experts_output_norm.weight != nullptr;
  if (has_experts && !is_joined) {
    experts_.run(workers, model, layer, hidden_.data(), num_tokens, hidden_.data());
  }
  if (mlp_up.outputs == 0) {
    return;
  }
  grow(activated_, num_tokens * row_bytes(model, mlp_down.inputs));
  const std::vector<char>& rows = shares_norm(model, layer) ? normed_ : mlp_normed_;
  if (layer.gate_cutoff != nullptr) {
    cut_gates(workers, model, layer, rows.data(), num_tokens);
  } else {
    LinearCall up =
        linear_call(model, mlp_up, rows.data(), num_tokens, Finish::kActivate, 1.0f, nullptr);
    up.is_gated = model.is_gated != 0;
    up.activated = activated_.data();
    workers.multiply(up);
  }
  if (is_joined) {
    add_joined(workers, model, layer, num_tokens);
  } else {
    add_product(workers, model, mlp_down, activated_, layer.mlp_output_norm, num_tokens, shares);
  }
}

// Computes activated_ from `rows`, with most gates cut off. The cutoff depends on all gates of a
// token, so a panel cannot be activated as soon as it is multiplied.
void Step::cut_gates(Workers& workers, const HearthModel& model, const HearthLayer& layer,
                     const char* rows, int64_t num_tokens) {
  const int64_t size = layer.down.inputs;
  grow(gates_, num_tokens * layer.up.outputs);
  workers.multiply(
      linear_call(model, layer.up, rows, num_tokens, Finish::kStore, 1.0f, gates_.data()));
  workers.each_row(num_tokens, [&](int64_t token) {
    float* const gates = gates_.data() + token * layer.up.outputs;
    const float* const passing = gates + size;
    const float mean = sum(gates, size) / static_cast<float>(size);
    const float variance = sum_of_squares(gates, size, mean) / static_cast<float>(size);
    const float cutoff = mean + *layer.gate_cutoff * __builtin_sqrtf(variance);
    for (int64_t i = 0; i < size; ++i) {
      const float above = gates[i] - cutoff;
      gates[i] =
          above <= 0.0f
              ? 0.0f
              : activated<Scalar>(static_cast<Activation>(model.activation), above) * passing[i];
    }
    workers.kernels.prepare_row(bits(model), gates, size / kGroup,
                                activated_.data() + token * row_bytes(model, size));
  });
}

// Adds experts and the MLP beside them, which is in activated_, to hidden_.
void Step::add_joined(Workers& workers, const HearthModel& model, const HearthLayer& layer,
                      int64_t num_tokens) {
  const int64_t size = num_tokens * model.hidden;
  grow(product_, size);
  grow(of_experts_, size);
  std::fill_n(of_experts_.data(), size, 0.0f);
  experts_.run(workers, model, layer, hidden_.data(), num_tokens, of_experts_.data());
  workers.multiply(linear_call(model, layer.shared_down, activated_.data(), num_tokens,
                               Finish::kStore, 1.0f, product_.data()));
  const auto norm_row = [&](const HearthNorm& norm, float* row) {
    NormCall call = norm_call(model, norm);
    call.bits = Bits::kFloat32;
    workers.kernels.norm_row(call, row, row);
  };
  workers.each_row(num_tokens, [&](int64_t token) {
    float* const product = product_.data() + token * model.hidden;
    float* const of_experts = of_experts_.data() + token * model.hidden;
    float* const hidden = hidden_.data() + token * model.hidden;
    norm_row(layer.shared_output_norm, product);
    norm_row(layer.experts_output_norm, of_experts);
    for (int64_t i = 0; i < model.hidden; ++i) {
      product[i] += of_experts[i];
    }
    norm_row(layer.mlp_output_norm, product);
    for (int64_t i = 0; i < model.hidden; ++i) {
      hidden[i] += model.residual_multiplier * product[i];
    }
  });
}

// Returns the norm of hidden_ as float32: `normed`, unless that is rounded.
const char* Step::exact_rows(Workers& workers, const HearthModel& model, const HearthNorm& norm,
                             const std::vector<char>& normed, int64_t num_tokens) {
  if (bits(model) == Bits::kFloat32) {
    return normed.data();
  }
  const int64_t row = model.hidden * static_cast<int64_t>(sizeof(float));
  grow(exact_, num_tokens * row);
  NormCall call = norm_call(model, norm);
  call.bits = Bits::kFloat32;
  workers.each_row(num_tokens, [&](int64_t token) {
    workers.kernels.norm_row(call, hidden_.data() + token * model.hidden,
                             exact_.data() + token * row);
  });
  return exact_.data();
}

// Returns each token's weight of the MLP beside the experts; null if all weights are 1.
const float* Step::shared_shares(Workers& workers, const HearthModel& model,
                                 const HearthLayer& layer, int64_t num_tokens) {
  if (layer.shared_gate.outputs == 0) {
    return nullptr;
  }
  const char* const rows = exact_rows(workers, model, layer.mlp_norm, mlp_normed_, num_tokens);
  grow(shares_, num_tokens);
  workers.multiply(linear_call(model, layer.shared_gate, rows, num_tokens, Finish::kStore, 1.0f,
                               shares_.data()));
  for (int64_t token = 0; token < num_tokens; ++token) {
    float& share = shares_[static_cast<size_t>(token)];
    share = sigmoid<Scalar>(share);
  }
  return shares_.data();
}

// Adds a product, normalised if there is a norm, to hidden_. `shares` are the rows' weights, or
// null, and only without a norm.
void Step::add_product(Workers& workers, const HearthModel& model, const HearthLinear& linear,
                       const std::vector<char>& rows, const HearthNorm& norm, int64_t num_rows,
                       const float* shares) {
  const float factor = model.residual_multiplier;
  if (norm.weight == nullptr) {
    LinearCall call =
        linear_call(model, linear, rows.data(), num_rows, Finish::kAdd, factor, hidden_.data());
    call.shares = shares;
    workers.multiply(call);
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

// Computes qkv_ from normed_.
void Step::project(Workers& workers, const HearthModel& model, const HearthLayer& layer,
                   int64_t num_tokens) {
  const int64_t stride = qkv_width(model, layer);
  const int64_t query_rank = layer.q_a.outputs;
  if (query_rank > 0) {
    grow(query_latents_, num_tokens * query_rank);
    grow(latent_rows_, num_tokens * row_bytes(model, query_rank));
    workers.multiply(linear_call(model, layer.q_a, normed_.data(), num_tokens, Finish::kStore, 1.0f,
                                 query_latents_.data()));
    const NormCall norm = latent_norm(bits(model), layer.q_a_norm, query_rank);
    workers.each_row(num_tokens, [&](int64_t token) {
      workers.kernels.norm_row(norm, query_latents_.data() + token * query_rank,
                               latent_rows_.data() + token * row_bytes(model, query_rank));
    });
  }
  grow(qkv_, num_tokens * stride);
  float* out = qkv_.data();
  std::vector<LinearCall> calls;
  for (const HearthLinear* linear : {&layer.qkv, &layer.values, &layer.q_b, &layer.kv_a}) {
    const bool reads_latents = linear == &layer.q_b && query_rank > 0;
    const char* const rows = reads_latents ? latent_rows_.data() : normed_.data();
    if (linear->outputs > 0) {
      calls.push_back(linear_call(model, *linear, rows, num_tokens, Finish::kStore, 1.0f, out));
      calls.back().out_stride = stride;
      out += linear->outputs;
    }
  }
  workers.multiply(calls);
  if (has_latents(layer)) {
    const int64_t rank = key_dim(layer) - layer.rotary_dim;
    const NormCall norm = latent_norm(Bits::kFloat32, layer.kv_a_norm, rank);
    workers.each_row(num_tokens, [&](int64_t token) {
      float* const latent = qkv_.data() + (token + 1) * stride - rank;
      workers.kernels.norm_row(norm, latent, latent);
    });
  }
}

// Computes queries from normed_ into qkv_, and writes keys and values to the rows' pages.
void Step::write(Workers& workers, const HearthModel& model, const HearthLayer& layer,
                 const Part& part, int64_t num_tokens) {
  const int64_t stride = qkv_width(model, layer);
  const int64_t num_kv_heads = layer.is_kv_shared ? 0 : layer.num_kv_heads;
  const auto type = static_cast<CacheType>(model.cache_type);
  const int64_t rotary_dim = layer.cos == nullptr ? 0 : layer.rotary_dim;
  const HearthPages pages = pages_of(model, layer);
  project(workers, model, layer, num_tokens);
  workers.each_row(num_tokens, [&](int64_t token) {
    const auto index = static_cast<size_t>(token);
    const int64_t position = lengths_[index] - 1;
    float* const queries = qkv_.data() + token * stride;
    float* const keys = queries + queries_width(model, layer);
    char* place = nullptr;
    if (num_kv_heads > 0) {
      const int64_t slot = part.batch.slots[part.first + token];
      place = page_of(pages, rows_[index], slot) + layer.page_offset +
              slot % kPageTokens * slot_bytes(type, key_dim(layer));
    }
    if (layer.are_keys_values) {
      const int64_t size = num_kv_heads * layer.head_dim;
      std::copy_n(keys, size, keys + size);
    }
    workers.kernels.write_heads(
        {queries, keys, layer.qk_norm, model.is_qk_norm_whole != 0, model.is_qk_norm_last != 0,
         model.has_value_norm != 0, model.norm_eps, layer.cos + position * rotary_dim,
         layer.sin + position * rotary_dim, rotary_dim,
         layer.query_scales == nullptr ? 1.0f : layer.query_scales[position], model.num_heads,
         num_kv_heads, layer.head_dim, key_dim(layer), attended_dim(layer), type, place});
  });
}

// Moves everything that the rest of a layer reads about outputs to the places of the first tokens.
void Step::keep_outputs(const HearthModel& model, const HearthLayer& layer, const Part& part) {
  const int64_t row = row_bytes(model, model.hidden);
  for (int64_t output = 0; output < part.num_outputs; ++output) {
    const int64_t token = part.outputs[output] - part.first;
    const auto move = [&](auto& memory, int64_t stride, int64_t size) {
      std::copy_n(memory.data() + token * stride, size, memory.data() + output * stride);
    };
    if (token == output) {
      continue;
    }
    move(hidden_, model.hidden, model.hidden);
    if (is_recurrent(layer)) {
      move(attended_, layer.recurrent.out.inputs, layer.recurrent.out.inputs);
    }
    if (attends(layer)) {
      move(qkv_, qkv_width(model, layer), queries_width(model, layer));
    }
    move(rows_, 1, 1);
    move(lengths_, 1, 1);
    if (branches_ != nullptr) {
      move(branch_memory_, 1, 1);
    }
    if (model.inputs.size > 0) {
      layer_inputs_.move(model, token, output);
    }
    if (has_streams(model)) {
      streams_.move(model, token, output);
    }
    if (model.is_parallel || layer.laurel_in.outputs > 0) {
      move(normed_, row, row);
    }
    if (model.is_parallel) {
      move(mlp_normed_, row, row);
    }
  }
}

// Adds attention's input, and the norm of a map of it, to hidden_. See HearthLayer.
void Step::add_laurel(Workers& workers, const HearthModel& model, const HearthLayer& layer,
                      int64_t num_tokens) {
  const int64_t rank = layer.laurel_in.outputs;
  const int64_t row = row_bytes(model, rank);
  const auto* const read = reinterpret_cast<const float*>(
      exact_rows(workers, model, layer.attention_norm, normed_, num_tokens));
  grow(product_, num_tokens * rank);
  grow(prepared_, num_tokens * row);
  workers.multiply(linear_call(model, layer.laurel_in, normed_.data(), num_tokens, Finish::kStore,
                               1.0f, product_.data()));
  workers.each_row(num_tokens, [&](int64_t token) {
    workers.kernels.prepare_row(bits(model), product_.data() + token * rank, rank / kGroup,
                                prepared_.data() + token * row);
    float* const hidden = hidden_.data() + token * model.hidden;
    for (int64_t i = 0; i < model.hidden; ++i) {
      hidden[i] += read[token * model.hidden + i];
    }
  });
  add_product(workers, model, layer.laurel_out, prepared_, layer.laurel_norm, num_tokens);
}

void Step::scale(Workers& workers, const HearthModel& model, float factor, int64_t num_tokens) {
  workers.each_row(num_tokens, [&](int64_t token) {
    float* const hidden = hidden_.data() + token * model.hidden;
    for (int64_t i = 0; i < model.hidden; ++i) {
      hidden[i] *= factor;
    }
  });
}

// Runs attention for the queries in qkv_, and adds its output to hidden_.
void Step::attend(Workers& workers, const HearthModel& model, const HearthLayer& layer,
                  int64_t num_tokens) {
  const int64_t values_width = model.num_heads * layer.value_dim;
  const bool is_latent = has_latents(layer);
  grow(attended_, num_tokens * model.num_heads * attended_dim(layer));
  grow(prepared_, num_tokens * row_bytes(model, values_width));
  if (is_latent) {
    absorb(workers, model, layer, num_tokens);
  }
  workers.attend({is_latent ? absorbed_.data() : qkv_.data(),
                  is_latent ? model.num_heads * key_dim(layer) : qkv_width(model, layer),
                  static_cast<CacheType>(model.cache_type), pages_of(model, layer),
                  layer.page_offset, rows_.data(), lengths_.data(), branches_, num_tokens,
                  layer.num_kv_heads, model.num_heads / layer.num_kv_heads, key_dim(layer),
                  attended_dim(layer), layer.window, model.attention_scale, layer.sinks,
                  attended_.data()});
  if (is_latent) {
    make_values(workers, model, layer, num_tokens);
  }
  float* const all_values = is_latent ? values_.data() : attended_.data();
  workers.each_row(num_tokens, [&](int64_t token) {
    float* const values = all_values + token * values_width;
    if (model.has_output_gates) {
      workers.kernels.gate(qkv_.data() + token * qkv_width(model, layer) + values_width,
                           values_width, values);
    }
    workers.kernels.prepare_row(bits(model), values, values_width / kGroup,
                                prepared_.data() + token * row_bytes(model, values_width));
  });
  add_product(workers, model, layer.out, prepared_, layer.attention_output_norm, num_tokens);
}

// Computes queries for latents, absorbed_, from the queries in qkv_. The score of the key W c of a
// latent c is q W c, and q W is computed once (DeepSeek-AI 2024, arXiv 2405.04434, section 2.1.2).
void Step::absorb(Workers& workers, const HearthModel& model, const HearthLayer& layer,
                  int64_t num_tokens) {
  const int64_t width = model.num_heads * key_dim(layer);
  const int64_t row = row_bytes(model, layer.k_b.inputs);
  grow(absorbed_, num_tokens * width);
  grow(head_rows_, model.num_heads * num_tokens * row);
  workers.each_row(num_tokens, [&](int64_t token) {
    const float* query = qkv_.data() + token * qkv_width(model, layer);
    for (int64_t head = 0; head < model.num_heads; ++head, query += layer.head_dim) {
      std::copy_n(query, layer.rotary_dim,
                  absorbed_.data() + token * width + head * key_dim(layer));
      float unturned[kMaxHeadDim] = {};
      std::copy_n(query + layer.rotary_dim, layer.head_dim - layer.rotary_dim, unturned);
      workers.kernels.prepare_row(bits(model), unturned, layer.k_b.inputs / kGroup,
                                  head_rows_.data() + (head * num_tokens + token) * row);
    }
  });
  multiply_heads(workers, model, layer.k_b, num_tokens, key_dim(layer) - layer.rotary_dim,
                 absorbed_.data() + layer.rotary_dim, key_dim(layer));
}

// Computes values_ from sums of latents in attended_.
void Step::make_values(Workers& workers, const HearthModel& model, const HearthLayer& layer,
                       int64_t num_tokens) {
  const int64_t rank = layer.v_b.inputs;
  const int64_t row = row_bytes(model, rank);
  grow(values_, num_tokens * model.num_heads * layer.value_dim);
  grow(head_rows_, model.num_heads * num_tokens * row);
  workers.each_row(num_tokens, [&](int64_t token) {
    for (int64_t head = 0; head < model.num_heads; ++head) {
      workers.kernels.prepare_row(
          bits(model), attended_.data() + (token * model.num_heads + head) * rank, rank / kGroup,
          head_rows_.data() + (head * num_tokens + token) * row);
    }
  });
  multiply_heads(workers, model, layer.v_b, num_tokens, layer.value_dim, values_.data(),
                 layer.value_dim);
}

// Multiplies each head's rows in head_rows_ by the first `outputs` outputs of its own matrix. Heads
// are `out_dim` apart in `out`.
void Step::multiply_heads(Workers& workers, const HearthModel& model, const HearthLinear& stack,
                          int64_t num_tokens, int64_t outputs, float* out, int64_t out_dim) {
  const int64_t rows = num_tokens * row_bytes(model, stack.inputs);
  std::vector<LinearCall> calls;
  for (int64_t head = 0; head < model.num_heads; ++head) {
    HearthLinear linear = one_of(stack, model.num_heads, head);
    linear.outputs = outputs;
    calls.push_back(linear_call(model, linear, head_rows_.data() + head * rows, num_tokens,
                                Finish::kStore, 1.0f, out + head * out_dim));
    calls.back().out_stride = model.num_heads * out_dim;
  }
  workers.multiply(calls);
}

// Adds the output of a recurrent mixer, which is in attended_, to hidden_.
void Step::add_mixed(Workers& workers, const HearthModel& model, const HearthLayer& layer,
                     int64_t num_tokens) {
  const HearthLinear& linear = layer.recurrent.out;
  workers.prepare(bits(model), attended_.data(), linear.inputs, num_tokens, prepared_);
  add_product(workers, model, linear, prepared_, layer.attention_output_norm, num_tokens);
}

}  // namespace hearth
