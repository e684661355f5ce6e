// Attention over a cache, block of positions by block: softmax is kept up as it goes (Milakov and
// Gimelshein 2018, arXiv 1805.02867), so that keys and values are read once and scores stay in the
// first level cache.
//
// A query's result depends on that query and what it sees: blocks begin at multiples of
// kPositions wherever the query stands, and what a query does not see has weight zero exactly.
#pragma once

#include "kernels.h"
#include "simd.h"

namespace hearth {
namespace {

constexpr int kPositions = 32;  // in a block
constexpr float kMinusInfinity = -__builtin_inff();

// c += a b, for kRows rows and kVectors vectors of columns, where b is [depth][columns].
template <class Simd, int kRows, int kVectors>
void product_tile(const float* a, int64_t a_stride, const float* b, int64_t b_stride, int depth,
                  float* c, int64_t c_stride) {
  typename Simd::Vector sums[kRows][kVectors];
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
    for (int vector = 0; vector < kVectors; ++vector) {
      sums[row][vector] = Simd::load(c + row * c_stride + vector * Simd::kLanes);
    }
  }
  for (int k = 0; k < depth; ++k) {
    typename Simd::Vector columns[kVectors];
#pragma GCC unroll 4
    for (int vector = 0; vector < kVectors; ++vector) {
      columns[vector] = Simd::load(b + k * b_stride + vector * Simd::kLanes);
    }
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
      const auto factor = Simd::set(a[row * a_stride + k]);
#pragma GCC unroll 4
      for (int vector = 0; vector < kVectors; ++vector) {
        sums[row][vector] = Simd::multiply_add(factor, columns[vector], sums[row][vector]);
      }
    }
  }
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
    for (int vector = 0; vector < kVectors; ++vector) {
      Simd::store(c + row * c_stride + vector * Simd::kLanes, sums[row][vector]);
    }
  }
}

// The columns of all rows that a tile of kVectors covers.
template <class Simd, int kVectors>
void product_columns(int num_rows, const float* a, int64_t a_stride, const float* b,
                     int64_t b_stride, int depth, float* c, int64_t c_stride) {
  constexpr int kRows = Simd::kRows;
  int row = 0;
  for (; row + kRows <= num_rows; row += kRows) {
    product_tile<Simd, kRows, kVectors>(a + row * a_stride, a_stride, b, b_stride, depth,
                                        c + row * c_stride, c_stride);
  }
  for (; row < num_rows; ++row) {
    product_tile<Simd, 1, kVectors>(a + row * a_stride, a_stride, b, b_stride, depth,
                                    c + row * c_stride, c_stride);
  }
}

// c [num_rows][columns] += a [num_rows][depth] b [depth][columns]. Each element adds its products
// in the order of k, whatever the tile that it is in.
template <class Simd>
void product(int num_rows, int columns, const float* a, int64_t a_stride, const float* b,
             int64_t b_stride, int depth, float* c, int64_t c_stride) {
  constexpr int kVectors = 2;
  int column = 0;
  for (; column + kVectors * Simd::kLanes <= columns; column += kVectors * Simd::kLanes) {
    product_columns<Simd, kVectors>(num_rows, a, a_stride, b + column, b_stride, depth, c + column,
                                    c_stride);
  }
  for (; column + Simd::kLanes <= columns; column += Simd::kLanes) {
    product_columns<Simd, 1>(num_rows, a, a_stride, b + column, b_stride, depth, c + column,
                             c_stride);
  }
  for (; column < columns; ++column) {
    product_columns<Scalar, 1>(num_rows, a, a_stride, b + column, b_stride, depth, c + column,
                               c_stride);
  }
}

// What a query has seen so far.
struct Softmax {
  float maximum = kMinusInfinity;  // of its scores
  float sum = 0.0f;                // of exp(score - maximum)
};

// One task's queries, token by token and group by group, and everything it needs in between.
struct AttentionState {
  alignas(64) float queries[kMaxQueries * kMaxHeadDim];         // [query][head_dim], scaled
  alignas(64) float outputs[kMaxQueries * kMaxHeadDim];         // [query][head_dim]
  alignas(64) float keys[kMaxHeadDim * kPositions];             // a block, [head_dim][position]
  alignas(64) float loaded[kMaxHeadDim * kPositions];           // a block out of half precision
  alignas(64) float scores[kMaxQueries * kPositions];           // [query][position], then weights
  Softmax softmax[kMaxQueries];
  int64_t begins[kMaxQueries];  // positions that a query sees: from begins…
  int64_t ends[kMaxQueries];    // …to before ends
  int num_queries;
};

inline void gather_queries(const AttentionCall& call, const AttentionTask& task,
                           AttentionState& state) {
  state.num_queries = static_cast<int>(task.num_tokens * task.num_groups);
  int query = 0;
  for (int64_t token = task.first_token; token < task.first_token + task.num_tokens; ++token) {
    for (int64_t group = 0; group < task.num_groups; ++group, ++query) {
      const int64_t head = task.kv_head * call.num_groups + task.first_group + group;
      const float* from = call.queries + token * call.query_stride + head * call.head_dim;
      for (int64_t i = 0; i < call.head_dim; ++i) {
        state.queries[query * call.head_dim + i] = from[i] * call.scale;
        state.outputs[query * call.head_dim + i] = 0.0f;
      }
      const int64_t end = call.lengths[token];
      const bool is_cut = call.window > 0 && end > call.window;
      state.begins[query] = is_cut ? end - call.window : 0;
      state.ends[query] = end;
      state.softmax[query] = Softmax{};
    }
  }
}

// Keys [position][head_dim] to [head_dim][position]; what lies behind `count` is set to zero.
template <class Simd>
void transpose_keys(const float* keys, int head_dim, int count, float* transposed) {
  constexpr int kLanes = Simd::kLanes;
  const int whole_positions = count / kLanes * kLanes;
  const int whole_dims = head_dim / kLanes * kLanes;
  for (int position = 0; position < whole_positions; position += kLanes) {
    for (int i = 0; i < whole_dims; i += kLanes) {
      Simd::transpose(keys + position * head_dim + i, head_dim,
                      transposed + i * kPositions + position, kPositions);
    }
  }
  for (int position = 0; position < kPositions; ++position) {
    const int first = position < whole_positions ? whole_dims : 0;
    for (int i = first; i < head_dim; ++i) {
      const bool is_there = position < count;
      transposed[i * kPositions + position] = is_there ? keys[position * head_dim + i] : 0.0f;
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
void update_softmax(float* scores, int64_t begin, int64_t end, int64_t head_dim, Softmax& softmax,
                    float* output) {
  hide_unseen(scores, begin, end);
  const float largest = largest_score<Simd>(scores);
  if (largest > softmax.maximum) {
    const float kept = exp_of_negative<Scalar>(softmax.maximum - largest);
    for (int64_t i = 0; i < head_dim; ++i) {
      output[i] *= kept;
    }
    softmax.sum *= kept;
    softmax.maximum = largest;
  }
  // As long as nothing has been seen, any maximum gives the weights zero.
  const float maximum = softmax.maximum == kMinusInfinity ? 0.0f : softmax.maximum;
  softmax.sum += exponentiate<Simd>(scores, maximum);
}

// `count` positions of a cache as floats: where they are, or copied to `space`.
template <class Simd>
const float* loaded(const float* block, int64_t, float*) {
  return block;
}

template <class Simd>
const float* loaded(const uint16_t* block, int64_t size, float* space) {
  int64_t i = 0;
  for (; i + Simd::kLanes <= size; i += Simd::kLanes) {
    Simd::store(space + i, Simd::load_half(block + i));
  }
  for (; i < size; ++i) {
    space[i] = half_to_float(block[i]);
  }
  return space;
}

// A block of keys or values to the second level cache. The processor's own prefetching stops at
// every page, which is every 16 positions of 64 floats.
template <class Element>
void prefetch_block(const Element* block, int64_t count) {
  constexpr int64_t kLineElements = kCacheLine / static_cast<int64_t>(sizeof(Element));
  for (int64_t i = 0; i < count; i += kLineElements) {
    __builtin_prefetch(block + i, 0, 2);
  }
}

// Positions [first, first + count). The `next_count` after them are fetched a little with every
// query: all at once they would hold up whatever comes after them.
template <class Simd, class Element>
void attend_block(const Element* keys, const Element* values, int64_t head_dim, int64_t first,
                  int count, int64_t next_count, AttentionState& state) {
  const int depth = static_cast<int>(head_dim);
  const int64_t size = count * head_dim;
  const Element* next_keys = keys + (first + count) * head_dim;
  const Element* next_values = values + (first + count) * head_dim;
  const int64_t share = next_count * head_dim / state.num_queries;
  transpose_keys<Simd>(loaded<Simd>(keys + first * head_dim, size, state.loaded), depth, count,
                       state.keys);
  for (int i = 0; i < state.num_queries * kPositions; ++i) {
    state.scores[i] = 0.0f;
  }
  product<Simd>(state.num_queries, kPositions, state.queries, head_dim, state.keys, kPositions,
                depth, state.scores, kPositions);
  for (int query = 0; query < state.num_queries; ++query) {
    prefetch_block(next_keys + query * share, share);
    prefetch_block(next_values + query * share, share);
    update_softmax<Simd>(state.scores + query * kPositions, state.begins[query] - first,
                         state.ends[query] - first, head_dim, state.softmax[query],
                         state.outputs + query * head_dim);
  }
  product<Simd>(state.num_queries, depth, state.scores, kPositions,
                loaded<Simd>(values + first * head_dim, size, state.loaded), head_dim, count,
                state.outputs, head_dim);
}

inline void scatter_outputs(const AttentionCall& call, const AttentionTask& task,
                            const AttentionState& state) {
  const int64_t num_heads = call.num_kv_heads * call.num_groups;
  int query = 0;
  for (int64_t token = task.first_token; token < task.first_token + task.num_tokens; ++token) {
    for (int64_t group = 0; group < task.num_groups; ++group, ++query) {
      const int64_t head = task.kv_head * call.num_groups + task.first_group + group;
      float* to = call.out + (token * num_heads + head) * call.head_dim;
      const float inverse = 1.0f / state.softmax[query].sum;
      for (int64_t i = 0; i < call.head_dim; ++i) {
        to[i] = state.outputs[query * call.head_dim + i] * inverse;
      }
    }
  }
}

template <class Simd, class Element>
void attend_over(const AttentionCall& call, const AttentionTask& task) {
  AttentionState state;
  gather_queries(call, task, state);
  int64_t begin = state.begins[0];
  int64_t end = state.ends[0];
  for (int query = 1; query < state.num_queries; ++query) {
    begin = state.begins[query] < begin ? state.begins[query] : begin;
    end = state.ends[query] > end ? state.ends[query] : end;
  }
  const int64_t offset =
      call.rows[task.first_token] * call.row_stride + task.kv_head * call.head_stride;
  const auto* keys = static_cast<const Element*>(call.keys) + offset;
  const auto* values = static_cast<const Element*>(call.values) + offset;
  for (int64_t first = begin / kPositions * kPositions; first < end; first += kPositions) {
    const int64_t rest = end - first;
    const int count = rest < kPositions ? static_cast<int>(rest) : kPositions;
    const int64_t next_rest = rest - count;
    const int64_t next_count = next_rest < kPositions ? next_rest : kPositions;
    attend_block<Simd>(keys, values, call.head_dim, first, count, next_count, state);
  }
  scatter_outputs(call, task, state);
}

template <class Simd>
void attend(const AttentionCall& call, const AttentionTask& task) {
  if (call.type == CacheType::kFloat16) {
    attend_over<Simd, uint16_t>(call, task);
  } else {
    attend_over<Simd, float>(call, task);
  }
}

}  // namespace
}  // namespace hearth
