// The gated delta rule (Yang et al. 2024, arXiv 2412.06464) of one head over tokens of a user row:
// a state S of [key_dim][value_dim] that each token decays, corrects and reads.
//
//     S = decay S;  u = beta (v - S^T k);  S = S + k u^T;  o = S^T q
//
// In Kimi delta attention (Kimi Team 2025, arXiv 2510.26692), each channel of a key has a decay of
// its own. It is no common factor of what is read: keys and queries are decayed before.
//
// Mamba-2 (Dao and Gu 2024, arXiv 2405.21060) is the same without the correction: its B are keys,
// its C queries, its x values, and its step length takes the place of beta.
//
// Columns of S are independent: a few of them stay in the first level cache while all tokens pass.
// While one token is written, the next one reads, so S is loaded and stored once for each token.
// The sums of each element have one order, however a prompt is cut.
#pragma once

#include "activation.h"
#include "kernels.h"
#include "norm.h"
#include "simd.h"

namespace hearth {
namespace {

constexpr float kDeltaEps = 1e-6f;  // added to the sum of squares of a query or a key
constexpr int kDeltaVectors = 2;    // vectors of columns that are handled at once, and adjacent

// Some tokens of one head.
struct DeltaTokens {
  alignas(64) float queries[kDeltaTokens][kMaxDeltaDim];
  alignas(64) float keys[kDeltaTokens][kMaxDeltaDim];
  alignas(64) float values[kDeltaTokens][kMaxDeltaDim];  // later the outputs
  float decays[kDeltaTokens];                            // 1 if channels have decays of their own
  float betas[kDeltaTokens];
  float overlaps[kDeltaTokens];                                // products of key and query
  alignas(64) float drafted[kMaxDeltaDim * kMaxDeltaColumns];  // columns that only drafts see
  alignas(64) float channel_decays[kDeltaTokens][kMaxDeltaDim];
  alignas(64) float decayed_keys[kDeltaTokens][kMaxDeltaDim];
};

inline bool has_channel_decays(const HearthRecurrent& layer) {
  return static_cast<Mixer>(layer.kind) == Mixer::kKimiDelta;
}

// Returns log(1 + exp(x)). log(1 + y) = 2 artanh(y / (2 + y)), with series 2 z (1 + z^2 / 3 + …).
template <class Simd>
typename Simd::Vector softplus(typename Simd::Vector x) {
  const auto one = Simd::set(1.0f);
  const auto two = Simd::set(2.0f);
  const auto power = exp_of_negative<Simd>(Simd::minus_magnitude(x));
  const auto z = Simd::divide(power, Simd::multiply_add(one, power, two));
  const auto square = Simd::multiply(z, z);
  auto sum = Simd::set(1.0f / 15);
  for (int odd = 13; odd > 0; odd -= 2) {
    sum = Simd::multiply_add(sum, square, Simd::set(1.0f / static_cast<float>(odd)));
  }
  const auto positive = Simd::where_negative(x, Simd::set(0.0f), x);
  return Simd::multiply_add(Simd::multiply(two, z), sum, positive);
}

// Computes silu of the convolution for channels [first, end).
template <class Simd>
void convolve_channels(const DeltaCall& call, int64_t token, int64_t first, int64_t end,
                       float* out) {
  const int64_t channels = call.layer.conv_dim;
  const int64_t before = call.layer.conv_width - 1;
  const float* const bias = call.layer.conv_bias;
  for (int64_t i = first; i + Simd::kLanes <= end; i += Simd::kLanes) {
    auto sum = bias == nullptr ? Simd::set(0.0f) : Simd::load(bias + i);
    for (int64_t tap = 0; tap <= before; ++tap) {
      const int64_t at = token - before + tap;
      const float* const input =
          at < 0 ? call.tail + (before + at) * channels : call.inputs + at * call.row_stride;
      sum = Simd::multiply_add(Simd::load(call.layer.conv + tap * channels + i),
                               Simd::load(input + i), sum);
    }
    Simd::store(out + i - first, activated<Simd>(Activation::kSilu, sum));
  }
}

inline void set_length(float* x, int64_t size, float length) {
  const float factor = length / __builtin_sqrtf(sum_of_squares(x, size, 0.0f) + kDeltaEps);
  for (int64_t i = 0; i < size; ++i) {
    x[i] *= factor;
  }
}

inline float overlap(const float* a, const float* b, int64_t size) {
  float lanes[kNormLanes] = {};
  for (int64_t i = 0; i < size; i += kNormLanes) {
    for (int lane = 0; lane < kNormLanes; ++lane) {
      lanes[lane] += a[i + lane] * b[i + lane];
    }
  }
  return lane_sum(lanes);
}

// The first channels of a head.
struct DeltaChannels {
  int64_t query;
  int64_t key;
  int64_t value;
};

inline DeltaChannels channels_of(const HearthRecurrent& layer, int64_t head) {
  const int64_t shared = layer.heads / layer.key_heads;  // value heads that share a key head
  const int64_t key_head = layer.is_tiled ? head % layer.key_heads : head / shared;
  const int64_t keys = layer.key_heads * layer.key_dim;
  const int64_t at = key_head * layer.key_dim;
  if (layer.skip == nullptr) {
    return {at, keys + at, 2 * keys + head * layer.value_dim};
  }
  const int64_t values = layer.heads * layer.value_dim;
  return {values + keys + at, values + at, head * layer.value_dim};
}

// Computes the decays of channels, and decays the key and query that read the state before.
template <class Simd>
void decay_channels(const DeltaCall& call, int64_t head, int64_t token, int at,
                    DeltaTokens& tokens) {
  const HearthRecurrent& layer = call.layer;
  const int64_t first = head * layer.key_dim;
  const float* const steps =
      call.gates + token * call.row_stride + layer.heads * layer.value_dim + first;
  const float* const bias = layer.step_bias + first;
  const auto one = Simd::set(1.0f);
  const auto rate = Simd::set(layer.decay[head]);
  for (int64_t i = 0; i < layer.key_dim; i += Simd::kLanes) {
    const auto step = Simd::multiply_add(one, Simd::load(bias + i), Simd::load(steps + i));
    const auto decay = exp_of_negative<Simd>(Simd::multiply(rate, softplus<Simd>(step)));
    const auto key = Simd::load(tokens.keys[at] + i);
    const auto query = Simd::load(tokens.queries[at] + i);
    Simd::store(tokens.channel_decays[at] + i, decay);
    Simd::store(tokens.decayed_keys[at] + i, Simd::multiply(decay, key));
    Simd::store(tokens.queries[at] + i, Simd::multiply(decay, query));
  }
}

template <class Simd>
void prepare_token(const DeltaCall& call, int64_t head, int64_t token, int at,
                   DeltaTokens& tokens) {
  const HearthRecurrent& layer = call.layer;
  const int64_t key_dim = layer.key_dim;
  const DeltaChannels from = channels_of(layer, head);
  convolve_channels<Simd>(call, token, from.query, from.query + key_dim, tokens.queries[at]);
  convolve_channels<Simd>(call, token, from.key, from.key + key_dim, tokens.keys[at]);
  convolve_channels<Simd>(call, token, from.value, from.value + layer.value_dim, tokens.values[at]);
  const float* const steps = call.steps + token * call.step_stride;
  const bool corrects = layer.skip == nullptr;
  if (corrects) {
    tokens.betas[at] = (layer.is_doubled ? 2.0f : 1.0f) * sigmoid<Scalar>(steps[head]);
    set_length(tokens.queries[at], key_dim, 1.0f / __builtin_sqrtf(static_cast<float>(key_dim)));
    set_length(tokens.keys[at], key_dim, 1.0f);
  }
  tokens.overlaps[at] = overlap(tokens.keys[at], tokens.queries[at], key_dim);
  if (has_channel_decays(layer)) {
    tokens.decays[at] = 1.0f;
    decay_channels<Simd>(call, head, token, at, tokens);
    return;
  }
  const float step = corrects ? steps[layer.heads + head] : steps[head];
  const float length = softplus<Scalar>(step + layer.step_bias[head]);
  tokens.decays[at] = exp_of_negative<Scalar>(layer.decay[head] * length);
  if (!corrects) {
    tokens.betas[at] = length;
  }
}

template <class Simd, int kVectors>
constexpr int64_t kColumns = kVectors * Simd::kLanes;

// S^T k and S^T q for some columns.
template <class Simd, int kVectors>
struct ReadColumns {
  typename Simd::Vector keyed[kVectors];
  typename Simd::Vector queried[kVectors];
};

template <class Simd, int kVectors>
ReadColumns<Simd, kVectors> nothing_read() {
  ReadColumns<Simd, kVectors> read;
  for (int v = 0; v < kVectors; ++v) {
    read.keyed[v] = Simd::set(0.0f);
    read.queried[v] = Simd::set(0.0f);
  }
  return read;
}

template <class Simd, int kVectors>
ReadColumns<Simd, kVectors> read_columns(const float* state, int64_t key_dim, const float* key,
                                         const float* query) {
  ReadColumns<Simd, kVectors> read = nothing_read<Simd, kVectors>();
  for (int64_t i = 0; i < key_dim; ++i) {
    for (int v = 0; v < kVectors; ++v) {
      const auto row = Simd::load(state + i * kColumns<Simd, kVectors> + v * Simd::kLanes);
      read.keyed[v] = Simd::multiply_add(Simd::set(key[i]), row, read.keyed[v]);
      read.queried[v] = Simd::multiply_add(Simd::set(query[i]), row, read.queried[v]);
    }
  }
  return read;
}

// Returns the keys that read the state before a token.
template <bool kByChannel>
const float* reading_keys(const DeltaTokens& tokens, int token) {
  return kByChannel ? tokens.decayed_keys[token] : tokens.keys[token];
}

// Computes to = decay from + k u^T. Returns what the next token reads from it.
template <class Simd, int kVectors, bool kByChannel>
ReadColumns<Simd, kVectors> move_columns(const float* from, float* to, int64_t key_dim,
                                         const DeltaTokens& tokens, int token, int next,
                                         const typename Simd::Vector (&update)[kVectors]) {
  ReadColumns<Simd, kVectors> read = nothing_read<Simd, kVectors>();
  const float* const key = tokens.keys[token];
  const float* const next_key = reading_keys<kByChannel>(tokens, next);
  const float* const next_query = tokens.queries[next];
  const auto head_decay = Simd::set(tokens.decays[token]);
  for (int64_t i = 0; i < key_dim; ++i) {
    const auto decays = kByChannel ? Simd::set(tokens.channel_decays[token][i]) : head_decay;
    const auto keys = Simd::set(key[i]);
    const auto next_keys = Simd::set(next_key[i]);
    const auto next_queries = Simd::set(next_query[i]);
    for (int v = 0; v < kVectors; ++v) {
      const int64_t at = i * kColumns<Simd, kVectors> + v * Simd::kLanes;
      const auto decayed = Simd::multiply(decays, Simd::load(from + at));
      const auto row = Simd::multiply_add(keys, update[v], decayed);
      Simd::store(to + at, row);
      read.keyed[v] = Simd::multiply_add(next_keys, row, read.keyed[v]);
      read.queried[v] = Simd::multiply_add(next_queries, row, read.queried[v]);
    }
  }
  return read;
}

// Passes all `tokens` over kVectors vectors of columns of a head's state, from `column` on. Changes
// `state`, or a copy if the tokens are drafts. If tokens do not correct, `skip` times the value is
// added to outputs.
template <class Simd, int kVectors, bool kByChannel>
void go_over_columns(DeltaTokens& tokens, int count, bool are_drafts, const HearthRecurrent& layer,
                     int64_t head, int64_t column, float* state) {
  const int64_t key_dim = layer.key_dim;
  const float* from = state + column * key_dim;
  float* const to = are_drafts ? tokens.drafted : state + column * key_dim;
  ReadColumns<Simd, kVectors> read = read_columns<Simd, kVectors>(
      from, key_dim, reading_keys<kByChannel>(tokens, 0), tokens.queries[0]);
  for (int token = 0; token < count; ++token) {
    const auto decay = Simd::set(tokens.decays[token]);
    const auto minus_decay = Simd::set(-tokens.decays[token]);
    typename Simd::Vector update[kVectors];
    for (int v = 0; v < kVectors; ++v) {
      float* const place = tokens.values[token] + column + v * Simd::kLanes;
      const auto value = Simd::load(place);
      const auto decayed = Simd::multiply(decay, read.queried[v]);
      auto kept = decayed;
      auto wanted = value;
      if (layer.skip == nullptr) {
        wanted = Simd::multiply_add(minus_decay, read.keyed[v], value);
      } else {
        kept = Simd::multiply_add(Simd::set(layer.skip[head]), value, decayed);
      }
      update[v] = Simd::multiply(Simd::set(tokens.betas[token]), wanted);
      const auto overlap = Simd::set(tokens.overlaps[token]);
      Simd::store(place, Simd::multiply_add(overlap, update[v], kept));
    }
    const int next = token + 1 < count ? token + 1 : token;  // the last result is not used
    read = move_columns<Simd, kVectors, kByChannel>(from, to, key_dim, tokens, token, next, update);
    from = to;
  }
}

// Passes all `tokens` over a head's state.
template <class Simd, bool kByChannel>
void go_over_state(DeltaTokens& tokens, int count, bool are_drafts, const HearthRecurrent& layer,
                   int64_t head, float* state) {
  int64_t column = 0;
  for (; column + kColumns<Simd, kDeltaVectors> <= layer.value_dim;
       column += kColumns<Simd, kDeltaVectors>) {
    go_over_columns<Simd, kDeltaVectors, kByChannel>(tokens, count, are_drafts, layer, head, column,
                                                     state);
  }
  for (; column < layer.value_dim; column += Simd::kLanes) {
    go_over_columns<Simd, 1, kByChannel>(tokens, count, are_drafts, layer, head, column, state);
  }
}

// Writes the output times silu of the token's gate. With a delta rule, the output is normalised
// first; with Kimi's, the factor is the gate's sigmoid.
template <class Simd>
void write_delta(const DeltaCall& call, int64_t head, int64_t token, const float* read) {
  const int64_t size = call.layer.value_dim;
  const bool is_normed = call.layer.skip == nullptr;
  const float inverse =
      is_normed ? inverse_root(sum_of_squares(read, size, 0.0f), size, call.layer.norm_eps) : 1.0f;
  const float* const gates = call.gates + token * call.row_stride + head * size;
  float* const out = call.out + (token * call.layer.heads + head) * size;
  for (int64_t i = 0; i < size; i += Simd::kLanes) {
    auto result = Simd::load(read + i);
    if (is_normed) {
      result = Simd::multiply(Simd::multiply(result, Simd::set(inverse)),
                              Simd::load(call.layer.head_norm + i));
    }
    const auto gate = Simd::load(gates + i);
    const auto share = has_channel_decays(call.layer) ? sigmoid<Simd>(gate)
                                                      : activated<Simd>(Activation::kSilu, gate);
    Simd::store(out + i, Simd::multiply(result, share));
  }
}

template <class Simd>
void delta_head(const DeltaCall& call, int64_t head) {
  DeltaTokens tokens;
  const HearthRecurrent& layer = call.layer;
  const auto go_over =
      has_channel_decays(layer) ? go_over_state<Simd, true> : go_over_state<Simd, false>;
  float* const state = call.state + head * layer.key_dim * layer.value_dim;
  for (int64_t first = 0; first < call.num_tokens;) {
    const bool are_drafts = first >= call.num_kept;
    const int64_t left = (are_drafts ? call.num_tokens : call.num_kept) - first;
    const int count = left < kDeltaTokens ? static_cast<int>(left) : kDeltaTokens;
    for (int token = 0; token < count; ++token) {
      prepare_token<Simd>(call, head, first + token, token, tokens);
    }
    go_over(tokens, count, are_drafts, layer, head, state);
    for (int token = 0; token < count && call.out != nullptr; ++token) {
      write_delta<Simd>(call, head, first + token, tokens.values[token]);
    }
    first += count;
  }
}

}  // namespace
}  // namespace hearth
