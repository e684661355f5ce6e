// Attention over a cache, block of positions by block: softmax is kept up as it goes (Milakov and
// Gimelshein 2018, arXiv 1805.02867), so that keys and values are read once and scores stay in the
// first level cache.
//
// A query's result depends on that query and what it sees: blocks begin at multiples of
// kPositions wherever the query stands, and what a query does not see has weight zero exactly.
#pragma once

#include <cstring>
#include <type_traits>

#include "attention_product.h"
#include "kernels.h"
#include "simd.h"

namespace hearth {
namespace {

constexpr int kPositions = kPageTokens;  // in a block
constexpr float kMinusInfinity = -__builtin_inff();

// What a query has seen so far.
struct Softmax {
  float maximum = kMinusInfinity;  // of its scores
  float sum = 0.0f;                // of exp(score - maximum)
};

// One task's queries, token by token and group by group, and everything it needs in between.
struct AttentionState {
  alignas(64) float queries[kMaxQueries * kMaxHeadDim];  // [query][head_dim], scaled
  alignas(64) float outputs[kMaxQueries * kMaxHeadDim];  // [query][value_dim]
  alignas(64) float keys[kMaxHeadDim * kPositions];      // a block, [head_dim][position]
  alignas(64) float scores[kMaxQueries * kPositions];    // [query][position], then weights
  Softmax softmax[kMaxQueries];
  int64_t begins[kMaxQueries];  // positions that a query sees: from begins…
  int64_t ends[kMaxQueries];    // …to before ends
  int num_queries;
};

// The positions that each query sees, the same ones for all heads.
inline void set_seen(const AttentionCall& call, const AttentionTask& task, AttentionState& state) {
  int query = 0;
  for (int64_t token = task.first_token; token < task.first_token + task.num_tokens; ++token) {
    const int64_t end = call.lengths[token];
    const bool is_cut = call.window > 0 && end > call.window;
    for (int64_t group = 0; group < task.num_groups; ++group, ++query) {
      state.begins[query] = is_cut ? end - call.window : 0;
      state.ends[query] = end;
    }
  }
  state.num_queries = query;
}

inline void gather_queries(const AttentionCall& call, const AttentionTask& task, int64_t kv_head,
                           AttentionState& state) {
  int query = 0;
  for (int64_t token = task.first_token; token < task.first_token + task.num_tokens; ++token) {
    for (int64_t group = 0; group < task.num_groups; ++group, ++query) {
      const int64_t head = kv_head * call.num_groups + task.first_group + group;
      const float* from = call.queries + token * call.query_stride + head * call.head_dim;
      for (int64_t i = 0; i < call.head_dim; ++i) {
        state.queries[query * call.head_dim + i] = from[i] * call.scale;
      }
      for (int64_t i = 0; i < call.value_dim; ++i) {
        state.outputs[query * call.value_dim + i] = 0.0f;
      }
      // A sink is as if it had been seen already, at a position whose value is zero.
      state.softmax[query] = call.sinks == nullptr ? Softmax{} : Softmax{call.sinks[head], 1.0f};
    }
  }
}

// Keys [kPositions][slot] to floats [head_dim][kPositions].
template <class Simd, class Element>
void transpose_keys(const Element* keys, int slot, int head_dim, float* transposed) {
  constexpr int kDims = Columns<Simd, Element>::kDims;
  const int whole_dims = head_dim / kDims * kDims;
  for (int position = 0; position < kPositions; position += Simd::kLanes) {
    for (int i = 0; i < whole_dims; i += kDims) {
      const Columns<Simd, Element> columns(keys + position * slot + i, slot);
#pragma GCC unroll 32
      for (int dim = 0; dim < kDims; ++dim) {
        Simd::store(transposed + (i + dim) * kPositions + position, columns[dim]);
      }
    }
  }
  for (int i = whole_dims; i < head_dim; ++i) {
    for (int position = 0; position < kPositions; ++position) {
      transposed[i * kPositions + position] = load_element<Scalar>(keys + position * slot + i);
    }
  }
}

// The scores of one query, bit for bit what `product` makes of transposed keys.
template <class Simd, class Element>
void score(const float* query, const Element* keys, int slot, int head_dim, float* scores,
           Prefetch prefetch) {
  constexpr int kLanes = Simd::kLanes;
  constexpr int kVectors = 4;  // whose sums do not wait for each other
  constexpr int kDims = Columns<Simd, Element>::kDims;
  const int whole_dims = head_dim / kDims * kDims;
  for (int position = 0; position < kPositions; position += kVectors * kLanes) {
    typename Simd::Vector sums[kVectors];
#pragma GCC unroll 4
    for (int vector = 0; vector < kVectors; ++vector) {
      sums[vector] = Simd::set(0.0f);
    }
    for (int i = 0; i < whole_dims; i += kDims) {
      for (int dim = 0; dim < kDims; ++dim) {
        prefetch.step();
      }
#pragma GCC unroll 2
      for (int vector = 0; vector < kVectors; vector += 2) {
        const Element* from = keys + (position + vector * kLanes) * slot + i;
        const Columns<Simd, Element> even(from, slot);
        const Columns<Simd, Element> odd(from + kLanes * slot, slot);
#pragma GCC unroll 32
        for (int dim = 0; dim < kDims; ++dim) {
          const auto factor = Simd::set(query[i + dim]);
          sums[vector] = Simd::multiply_add(factor, even[dim], sums[vector]);
          sums[vector + 1] = Simd::multiply_add(factor, odd[dim], sums[vector + 1]);
        }
      }
    }
#pragma GCC unroll 4
    for (int vector = 0; vector < kVectors; ++vector) {
      Simd::store(scores + position + vector * kLanes, sums[vector]);
    }
  }
  for (int i = whole_dims; i < head_dim; ++i) {
    for (int position = 0; position < kPositions; ++position) {
      scores[position] = fused_multiply_add(
          query[i], load_element<Scalar>(keys + position * slot + i), scores[position]);
    }
  }
}

inline void hide_unseen(float* scores, int64_t begin, int64_t end) {
  if (begin <= 0 && end >= kPositions) {
    return;
  }
  for (int position = 0; position < kPositions; ++position) {
    const bool is_seen = position >= begin && position < end;
    scores[position] = is_seen ? scores[position] : kMinusInfinity;
  }
}

template <class Simd>
float largest_score(const float* scores) {
  auto largest = Simd::load(scores);
  for (int position = Simd::kLanes; position < kPositions; position += Simd::kLanes) {
    largest = Simd::max(largest, Simd::load(scores + position));
  }
  return Simd::largest_of(largest);
}

// Scores to exp(score - maximum); returns their sum.
template <class Simd>
float exponentiate(float* scores, float maximum) {
  const auto one = Simd::set(1.0f);
  auto sum = Simd::set(0.0f);
  for (int position = 0; position < kPositions; position += Simd::kLanes) {
    const auto score = Simd::load(scores + position);
    const auto below = Simd::multiply_add(one, score, Simd::set(-maximum));
    const auto weight = exp_of_negative<Simd>(below);
    Simd::store(scores + position, weight);
    sum = Simd::multiply_add(one, weight, sum);
  }
  return Simd::sum_of(sum);
}

// Turns a query's scores of one block into weights, and rescales what it has gathered before.
template <class Simd>
void update_softmax(float* scores, int64_t begin, int64_t end, int64_t value_dim, Softmax& softmax,
                    float* output) {
  hide_unseen(scores, begin, end);
  const float largest = largest_score<Simd>(scores);
  if (largest > softmax.maximum) {
    const float kept = exp_of_negative<Scalar>(softmax.maximum - largest);
    for (int64_t i = 0; i < value_dim; ++i) {
      output[i] *= kept;
    }
    softmax.sum *= kept;
    softmax.maximum = largest;
  }
  // As long as nothing has been seen, any maximum gives the weights zero.
  const float maximum = softmax.maximum == kMinusInfinity ? 0.0f : softmax.maximum;
  softmax.sum += exponentiate<Simd>(scores, maximum);
}

// A whole block of keys: where they are, or copied to `space` with zeros behind `count`.
template <class Element>
const Element* whole_block(const Element* keys, int slot, int count, Element* space) {
  if (count == kPositions) {
    return keys;
  }
  const int size = count * slot;
  for (int i = 0; i < size; ++i) {
    space[i] = keys[i];
  }
  for (int i = size; i < kPositions * slot; ++i) {
    space[i] = 0;
  }
  return space;
}

template <class Element>
constexpr CacheType kCacheType = std::is_same_v<Element, float>      ? CacheType::kFloat32
                                 : std::is_same_v<Element, uint16_t> ? CacheType::kFloat16
                                                                     : CacheType::kInt8;

// `count` positions of a key-value head, of what the cache holds. Values that are a part of keys
// are where those are.
struct Block {
  const char* keys;
  const char* values;
  int64_t first;
  int count;
};

// Elements of a cache that are steps of a scale, of their own for every position.
template <class Element>
constexpr bool kIsScaled = kCacheType<Element> == CacheType::kInt8;

// Multiplies what `count` positions have for each query by the scales behind their vectors.
template <class Element>
void apply_scales(const Element* vectors, int slot, int head_dim, int count, int num_queries,
                  float* of_positions) {
  float scales[kPositions];
  for (int position = 0; position < count; ++position) {
    std::memcpy(scales + position, vectors + position * slot + head_dim, sizeof(float));
  }
  for (int query = 0; query < num_queries; ++query) {
    for (int position = 0; position < count; ++position) {
      of_positions[query * kPositions + position] *= scales[position];
    }
  }
}

// Some of a task's queries.
struct Queries {
  int first;
  int count;
};

// While it works on one block it fetches the next one.
using AttendBlock = void (*)(const AttentionCall& call, const Block& block, const Block& next,
                             const Queries& queries, AttentionState& state);

template <class Simd, class Element>
void attend_block(const AttentionCall& call, const Block& block, const Block& next,
                  const Queries& queries, AttentionState& state) {
  const auto head_dim = static_cast<int>(call.head_dim);
  const auto value_dim = static_cast<int>(call.value_dim);
  const float* vectors = state.queries + queries.first * head_dim;
  float* outputs = state.outputs + queries.first * value_dim;
  const int slot = static_cast<int>(slot_elements(kCacheType<Element>, head_dim));
  const int64_t next_size = next.count * slot * static_cast<int64_t>(sizeof(Element));
  Prefetch next_keys(next.keys, next_size, head_dim);
  Prefetch next_values(next.values, next.values == next.keys ? 0 : next_size, block.count);
  constexpr int kMaxSlot = static_cast<int>(slot_elements(kCacheType<Element>, kMaxHeadDim));
  alignas(64) Element space[kMaxSlot * kPositions];
  const Element* keys =
      whole_block(reinterpret_cast<const Element*>(block.keys), slot, block.count, space);
  const auto* block_values = reinterpret_cast<const Element*>(block.values);
  if (queries.count == 1) {
    score<typename Simd::Square>(vectors, keys, slot, head_dim, state.scores, next_keys);
  } else {
    transpose_keys<typename Simd::Square>(keys, slot, head_dim, state.keys);
    for (int i = 0; i < queries.count * kPositions; ++i) {
      state.scores[i] = 0.0f;
    }
    product<Simd>(queries.count, kPositions, vectors, head_dim, state.keys, kPositions, head_dim,
                  state.scores, kPositions, next_keys);
  }
  if constexpr (kIsScaled<Element>) {
    apply_scales(keys, slot, head_dim, block.count, queries.count, state.scores);
  }
  for (int i = 0; i < queries.count; ++i) {
    const int query = queries.first + i;
    update_softmax<Simd>(state.scores + i * kPositions, state.begins[query] - block.first,
                         state.ends[query] - block.first, value_dim, state.softmax[query],
                         outputs + i * value_dim);
  }
  if constexpr (kIsScaled<Element>) {
    apply_scales(block_values, slot, head_dim, block.count, queries.count, state.scores);
  }
  const auto add_values = [&](const auto* values) {
    product<Simd>(queries.count, value_dim, state.scores, kPositions, values + head_dim - value_dim,
                  slot, block.count, outputs, value_dim, next_values);
  };
  if constexpr (Simd::kLanes > 1) {
    add_values(block_values);
  } else {  // without an instruction for it, values become floats once and not with every query
    float values[kMaxSlot * kPositions];
    for (int i = 0; i < block.count * slot; ++i) {
      values[i] = load_element<Simd>(block_values + i);
    }
    add_values(values);
  }
}

inline void scatter_outputs(const AttentionCall& call, const AttentionTask& task, int64_t kv_head,
                            const AttentionState& state) {
  const int64_t num_heads = call.num_kv_heads * call.num_groups;
  int query = 0;
  for (int64_t token = task.first_token; token < task.first_token + task.num_tokens; ++token) {
    for (int64_t group = 0; group < task.num_groups; ++group, ++query) {
      const int64_t head = kv_head * call.num_groups + task.first_group + group;
      float* to = call.out + (token * num_heads + head) * call.value_dim;
      const float inverse = 1.0f / state.softmax[query].sum;
      for (int64_t i = 0; i < call.value_dim; ++i) {
        to[i] = state.outputs[query * call.value_dim + i] * inverse;
      }
    }
  }
}

// Up to where all of a task's queries find positions in their own slots, in whole blocks.
inline int64_t shared_end(const AttentionCall& call, const AttentionTask& task, int64_t end) {
  int64_t first = kNoBranch;
  for (int64_t token = task.first_token;
       call.branches != nullptr && token < task.first_token + task.num_tokens; ++token) {
    first = call.branches[token].first < first ? call.branches[token].first : first;
  }
  return first == kNoBranch ? end : first / kPositions * kPositions;
}

// A block of a branch, as if its positions were in their own slots: `block` says where that is.
struct BranchBlock {
  static constexpr int64_t kSize = key_bytes(CacheType::kFloat32, kMaxHeadDim);
  alignas(64) char keys[kSize];
  alignas(64) char values[kSize];

  // `block_of(slot)` is the block that has a slot, which is of so many bytes.
  template <class BlockOf>
  Block gather(const Block& block, const Branch& branch, int64_t bytes, const BlockOf& block_of) {
    for (int i = 0; i < block.count; ++i) {
      const int64_t position = block.first + i;
      const int64_t at = position < branch.first ? position : branch.slots[position - branch.first];
      const Block own = block_of(at);
      const int64_t from = at % kPositions * bytes;
      std::memcpy(keys + i * bytes, own.keys + from, static_cast<size_t>(bytes));
      std::memcpy(values + i * bytes, own.values + from, static_cast<size_t>(bytes));
    }
    return {keys, values, block.first, block.count};
  }
};

// The blocks from `begin` on, token by token: what is there is of each token's own branch.
template <class BlockAt>
void attend_branches(const AttentionCall& call, const AttentionTask& task, int64_t kv_head,
                     int64_t begin, const BlockAt& block_at, AttendBlock attend_block,
                     AttentionState& state) {
  const int64_t slot = slot_bytes(call.type, call.head_dim);
  const auto num_groups = static_cast<int>(task.num_groups);
  BranchBlock space;
  for (int64_t i = 0; i < task.num_tokens; ++i) {
    const int64_t token = task.first_token + i;
    for (int64_t first = begin; first < call.lengths[token]; first += kPositions) {
      Block block = block_at(kv_head, first, call.lengths[token]);
      if (first + block.count > call.branches[token].first) {
        block = space.gather(block, call.branches[token], slot, [&](int64_t at) {
          return block_at(kv_head, at / kPositions * kPositions, at + 1);
        });
      }
      attend_block(call, block, {}, {static_cast<int>(i) * num_groups, num_groups}, state);
    }
  }
}

inline void attend_over(const AttentionCall& call, const AttentionTask& task,
                        AttendBlock attend_block) {
  AttentionState state;
  set_seen(call, task, state);
  int64_t begin = state.begins[0];
  int64_t end = state.ends[0];
  for (int query = 1; query < state.num_queries; ++query) {
    begin = state.begins[query] < begin ? state.begins[query] : begin;
    end = state.ends[query] > end ? state.ends[query] : end;
  }
  begin = begin / kPositions * kPositions;
  const int64_t shared = shared_end(call, task, end);
  const int64_t row = call.rows[task.first_token];
  const int64_t of_keys = key_bytes(call.type, call.head_dim);
  const int64_t of_values = call.value_dim < call.head_dim ? 0 : of_keys;
  const auto block_at = [&](int64_t kv_head, int64_t first, int64_t before) {
    const char* const keys =
        page_of(call.pages, row, first) + call.page_offset + kv_head * (of_keys + of_values);
    const int64_t rest = before - first;
    return Block{keys, keys + of_values, first,
                 rest < kPositions ? static_cast<int>(rest) : kPositions};
  };
  const int64_t end_head = task.first_head + task.num_heads;
  for (int64_t kv_head = task.first_head; kv_head < end_head; ++kv_head) {
    gather_queries(call, task, kv_head, state);
    for (int64_t first = begin; first < shared; first += kPositions) {
      const Block block = block_at(kv_head, first, shared);
      Block next = {};
      if (first + kPositions < shared) {
        next = block_at(kv_head, first + kPositions, shared);
      } else if (kv_head + 1 < end_head) {
        next = block_at(kv_head + 1, begin, shared);
      }
      attend_block(call, block, next, {0, state.num_queries}, state);
    }
    if (shared < end) {
      attend_branches(call, task, kv_head, begin > shared ? begin : shared, block_at, attend_block,
                      state);
    }
    scatter_outputs(call, task, kv_head, state);
  }
}

template <class Simd>
void attend(const AttentionCall& call, const AttentionTask& task) {
  switch (call.type) {
    case CacheType::kFloat32:
      attend_over(call, task, attend_block<Simd, float>);
      break;
    case CacheType::kFloat16:
      attend_over(call, task, attend_block<Simd, uint16_t>);
      break;
    default:
      attend_over(call, task, attend_block<Simd, int8_t>);
  }
}

}  // namespace
}  // namespace hearth
