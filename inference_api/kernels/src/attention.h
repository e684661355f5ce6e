// Attention over a cache, block of positions by block.
//
// A query's result depends only on the query and the positions that it sees: blocks begin at
// multiples of kPositions for every query, and unseen positions have weight zero exactly.
#pragma once

#include <cstring>

#include "attention_bfloat16.h"
#include "attention_bytes.h"
#include "hadamard.h"
#include "kernels.h"

namespace hearth {
namespace {

// Sets the positions that each query sees, which are the same for all heads.
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

// Returns the number of dimensions that are rotated together in the cache; 1 if none are.
inline int64_t rotated_dims(const AttentionCall& call) {
  return is_scaled(call.type) ? rotated_dims(call.head_dim, call.value_dim) : 1;
}

template <class Simd>
void gather_queries(const AttentionCall& call, const AttentionTask& task, int64_t kv_head,
                    AttentionState& state) {
  const int64_t rotated = rotated_dims(call);
  const float scale = call.scale / static_cast<float>(rotated);
  int query = 0;
  for (int64_t token = task.first_token; token < task.first_token + task.num_tokens; ++token) {
    for (int64_t group = 0; group < task.num_groups; ++group, ++query) {
      const int64_t head = kv_head * call.num_groups + task.first_group + group;
      const float* from = call.queries + token * call.query_stride + head * call.head_dim;
      for (int64_t i = 0; i < call.head_dim; ++i) {
        state.queries[query * call.head_dim + i] = from[i] * scale;
      }
      rotate(state.queries + query * call.head_dim, call.head_dim, rotated);
      if (is_scaled(call.type)) {
        quantise_query(state.queries + query * call.head_dim, call, query, state.bytes);
      }
      if (Simd::kHasBFloat16 && call.type == CacheType::kFloat16) {
        round_query(state.queries + query * call.head_dim, static_cast<int>(call.head_dim),
                    state.bfloat16s + query * kMaxPadded);
      }
      for (int64_t i = 0; i < call.value_dim; ++i) {
        state.outputs[query * call.value_dim + i] = 0.0f;
      }
      // A sink counts like a position that has been seen already, with value zero.
      state.softmax[query] = call.sinks == nullptr ? Softmax{} : Softmax{call.sinks[head], 1.0f};
    }
  }
}

inline void scatter_outputs(const AttentionCall& call, const AttentionTask& task, int64_t kv_head,
                            const AttentionState& state) {
  const int64_t num_heads = call.num_kv_heads * call.num_groups;
  const int64_t rotated = rotated_dims(call);
  int query = 0;
  for (int64_t token = task.first_token; token < task.first_token + task.num_tokens; ++token) {
    for (int64_t group = 0; group < task.num_groups; ++group, ++query) {
      const int64_t head = kv_head * call.num_groups + task.first_group + group;
      float* to = call.out + (token * num_heads + head) * call.value_dim;
      const float inverse = 1.0f / (state.softmax[query].sum * static_cast<float>(rotated));
      for (int64_t i = 0; i < call.value_dim; ++i) {
        to[i] = state.outputs[query * call.value_dim + i] * inverse;
      }
      rotate(to, call.value_dim, rotated);
    }
  }
}

// Returns the end of whole blocks in which all of a task's queries see positions in their own
// slots.
inline int64_t shared_end(const AttentionCall& call, const AttentionTask& task, int64_t end) {
  int64_t first = kNoBranch;
  for (int64_t token = task.first_token;
       call.branches != nullptr && token < task.first_token + task.num_tokens; ++token) {
    first = call.branches[token].first < first ? call.branches[token].first : first;
  }
  return first == kNoBranch ? end : first / kPositions * kPositions;
}

// A copy of a block as one branch sees it, in the order of positions.
struct BranchBlock {
  static constexpr int64_t kSize = key_bytes(CacheType::kFloat32, kMaxHeadDim);
  alignas(64) char keys[kSize];
  alignas(64) char values[kSize];

  // `block_of(slot)` returns the block that has a slot; a slot takes `bytes`.
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

// Attends to the blocks from `begin` on, token by token, because each sees its own branch there.
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

template <class Simd>
void attend_over(const AttentionCall& call, const AttentionTask& task, AttendBlock attend_block) {
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
    gather_queries<Simd>(call, task, kv_head, state);
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
constexpr AttendBlock attend_halves() {
  if constexpr (Simd::kHasBFloat16) {
    return attend_bfloat16<Simd>;
  } else {
    return attend_block<Simd, uint16_t>;
  }
}

template <class Simd>
void attend(const AttentionCall& call, const AttentionTask& task) {
  constexpr AttendBlock kByType[] = {attend_block<Simd, float>, attend_halves<Simd>(),
                                     attend_bytes<Simd>, attend_bytes<Simd>};
  attend_over<Simd>(call, task, kByType[static_cast<int>(call.type)]);
}

}  // namespace
}  // namespace hearth
