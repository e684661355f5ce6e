// Attention over a cache, block of positions by block: softmax is kept up as it goes (Milakov and
// Gimelshein 2018, arXiv 1805.02867), so that keys and values are read once and scores stay in the
// first level cache.
//
// A query's result depends on that query and what it sees: blocks begin at multiples of
// kPositions wherever the query stands, and what a query does not see has weight zero exactly.
#pragma once

#include <cstring>
#include <type_traits>

#include "kernels.h"
#include "simd.h"

namespace hearth {
namespace {

constexpr int kPositions = 32;  // in a block
constexpr float kMinusInfinity = -__builtin_inff();

// Fetches a block of keys or values into the second level cache, a little with every step of other
// work: all at once it would hold up whatever comes after it. The processor's own prefetching stops
// at every page, which is every 32 positions of 64 halves.
class Prefetch {
 public:
  Prefetch(const void* block, int64_t size, int64_t steps)
      : line_(static_cast<const char*>(block)),
        end_(line_ + size),
        lines_per_step_((size / kCacheLine + steps - 1) / steps) {}

  void step() {
    for (int64_t i = 0; i < lines_per_step_ && line_ < end_; ++i, line_ += kCacheLine) {
      __builtin_prefetch(line_, 0, 2);
    }
  }

 private:
  const char* line_;
  const char* end_;
  int64_t lines_per_step_;
};

// Elements of a cache as floats.
template <class Simd>
typename Simd::Vector load_element(const float* from) {
  return Simd::load(from);
}

template <class Simd>
typename Simd::Vector load_element(const uint16_t* from) {
  return Simd::load_half(from);
}

template <class Simd>
typename Simd::Vector load_element(const int8_t* from) {
  return Simd::load_int8(from);
}

// Some dimensions of the vectors at kLanes positions, as one vector for each dimension.
template <class Simd, class Element>
class Columns {
 public:
  static constexpr int kDims = Simd::kLanes;
  Columns(const Element* from, int64_t stride) { Simd::load_columns(from, stride, columns_); }
  typename Simd::Vector operator[](int dim) const { return columns_[dim]; }

 private:
  typename Simd::Vector columns_[kDims];
};

// Of bytes four dimensions are moved as one: a quarter of the shuffles.
template <class Simd>
class Columns<Simd, int8_t> {
 public:
  static constexpr int kDims = 4 * Simd::kLanes;
  Columns(const int8_t* from, int64_t stride) { Simd::load_quads(from, stride, quads_); }
  typename Simd::Vector operator[](int dim) const {
    return Simd::from_quad(quads_[dim / 4], dim % 4);
  }

 private:
  typename Simd::Vector quads_[Simd::kLanes];
};

// c += a b, for kRows rows and kVectors vectors of columns, where b is [depth][columns]. Every k is
// a step of `prefetch`.
template <class Simd, int kRows, int kVectors, class Element>
void product_tile(const float* a, int64_t a_stride, const Element* b, int64_t b_stride, int depth,
                  float* c, int64_t c_stride, Prefetch& prefetch) {
  Prefetch fetch = prefetch;
  typename Simd::Vector sums[kRows][kVectors];
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
#pragma GCC unroll 4
    for (int vector = 0; vector < kVectors; ++vector) {
      sums[row][vector] = Simd::load(c + row * c_stride + vector * Simd::kLanes);
    }
  }
  for (int k = 0; k < depth; ++k) {
    fetch.step();
    typename Simd::Vector columns[kVectors];
#pragma GCC unroll 4
    for (int vector = 0; vector < kVectors; ++vector) {
      columns[vector] = load_element<Simd>(b + k * b_stride + vector * Simd::kLanes);
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
  prefetch = fetch;
}

// The columns of all rows that a tile of kVectors covers: tiles of kRows, then of half as many.
template <class Simd, int kRows, int kVectors, class Element>
void product_columns(int num_rows, const float* a, int64_t a_stride, const Element* b,
                     int64_t b_stride, int depth, float* c, int64_t c_stride, Prefetch& prefetch) {
  int row = 0;
  for (; row + kRows <= num_rows; row += kRows) {
    product_tile<Simd, kRows, kVectors>(a + row * a_stride, a_stride, b, b_stride, depth,
                                        c + row * c_stride, c_stride, prefetch);
  }
  if constexpr (kRows > 1) {
    if (row < num_rows) {
      product_columns<Simd, kRows / 2, kVectors>(num_rows - row, a + row * a_stride, a_stride, b,
                                                 b_stride, depth, c + row * c_stride, c_stride,
                                                 prefetch);
    }
  }
}

// c [num_rows][columns] += a [num_rows][depth] b [depth][columns]. Each element adds its products
// in the order of k, whatever the tile that it is in.
template <class Simd, class Element>
void product(int num_rows, int columns, const float* a, int64_t a_stride, const Element* b,
             int64_t b_stride, int depth, float* c, int64_t c_stride, Prefetch& prefetch) {
  constexpr int kLanes = Simd::kLanes;
  int column = 0;
  if (num_rows == 1) {  // more sums that do not wait for each other
    for (; column + 4 * kLanes <= columns; column += 4 * kLanes) {
      product_columns<Simd, 1, 4>(num_rows, a, a_stride, b + column, b_stride, depth, c + column,
                                  c_stride, prefetch);
    }
  }
  for (; column + 2 * kLanes <= columns; column += 2 * kLanes) {
    product_columns<Simd, Simd::kRows, 2>(num_rows, a, a_stride, b + column, b_stride, depth,
                                          c + column, c_stride, prefetch);
  }
  for (; column + kLanes <= columns; column += kLanes) {
    product_columns<Simd, Simd::kRows, 1>(num_rows, a, a_stride, b + column, b_stride, depth,
                                          c + column, c_stride, prefetch);
  }
  for (; column < columns; ++column) {
    product_columns<Scalar, Scalar::kRows, 1>(num_rows, a, a_stride, b + column, b_stride, depth,
                                              c + column, c_stride, prefetch);
  }
}

// What a query has seen so far.
struct Softmax {
  float maximum = kMinusInfinity;  // of its scores
  float sum = 0.0f;                // of exp(score - maximum)
};

// One task's queries, token by token and group by group, and everything it needs in between.
struct AttentionState {
  alignas(64) float queries[kMaxQueries * kMaxHeadDim];  // [query][head_dim], scaled
  alignas(64) float outputs[kMaxQueries * kMaxHeadDim];  // [query][head_dim]
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
        state.outputs[query * call.head_dim + i] = 0.0f;
      }
      state.softmax[query] = Softmax{};
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

// `count` positions of a key-value head.
template <class Element>
struct Block {
  const Element* keys;
  const Element* values;
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

// While it works on one block it fetches the next one.
template <class Simd, class Element>
void attend_block(const Block<Element>& block, const Block<Element>& next, int head_dim,
                  AttentionState& state) {
  const int slot = static_cast<int>(slot_elements(kCacheType<Element>, head_dim));
  const int64_t next_size = next.count * slot * static_cast<int64_t>(sizeof(Element));
  Prefetch next_keys(next.keys, next_size, head_dim);
  Prefetch next_values(next.values, next_size, block.count);
  constexpr int kMaxSlot = static_cast<int>(slot_elements(kCacheType<Element>, kMaxHeadDim));
  alignas(64) Element space[kMaxSlot * kPositions];
  const Element* keys = whole_block(block.keys, slot, block.count, space);
  if (state.num_queries == 1) {
    score<typename Simd::Square>(state.queries, keys, slot, head_dim, state.scores, next_keys);
  } else {
    transpose_keys<typename Simd::Square>(keys, slot, head_dim, state.keys);
    for (int i = 0; i < state.num_queries * kPositions; ++i) {
      state.scores[i] = 0.0f;
    }
    product<Simd>(state.num_queries, kPositions, state.queries, head_dim, state.keys, kPositions,
                  head_dim, state.scores, kPositions, next_keys);
  }
  if constexpr (kIsScaled<Element>) {
    apply_scales(keys, slot, head_dim, block.count, state.num_queries, state.scores);
  }
  for (int query = 0; query < state.num_queries; ++query) {
    update_softmax<Simd>(state.scores + query * kPositions, state.begins[query] - block.first,
                         state.ends[query] - block.first, head_dim, state.softmax[query],
                         state.outputs + query * head_dim);
  }
  if constexpr (kIsScaled<Element>) {
    apply_scales(block.values, slot, head_dim, block.count, state.num_queries, state.scores);
  }
  const auto add_values = [&](const auto* values) {
    product<Simd>(state.num_queries, head_dim, state.scores, kPositions, values, slot, block.count,
                  state.outputs, head_dim, next_values);
  };
  if constexpr (Simd::kLanes > 1) {
    add_values(block.values);
  } else {  // without an instruction for it, values become floats once and not with every query
    float values[kMaxSlot * kPositions];
    for (int i = 0; i < block.count * slot; ++i) {
      values[i] = load_element<Simd>(block.values + i);
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
  set_seen(call, task, state);
  int64_t begin = state.begins[0];
  int64_t end = state.ends[0];
  for (int query = 1; query < state.num_queries; ++query) {
    begin = state.begins[query] < begin ? state.begins[query] : begin;
    end = state.ends[query] > end ? state.ends[query] : end;
  }
  begin = begin / kPositions * kPositions;
  const int64_t slot = slot_elements(call.type, call.head_dim);
  const auto block_at = [&](int64_t kv_head, int64_t first) {
    const int64_t offset =
        call.rows[task.first_token] * call.row_stride + kv_head * call.head_stride + first * slot;
    const int64_t rest = end - first;
    return Block<Element>{static_cast<const Element*>(call.keys) + offset,
                          static_cast<const Element*>(call.values) + offset, first,
                          rest < kPositions ? static_cast<int>(rest) : kPositions};
  };
  const int64_t end_head = task.first_head + task.num_heads;
  for (int64_t kv_head = task.first_head; kv_head < end_head; ++kv_head) {
    gather_queries(call, task, kv_head, state);
    for (int64_t first = begin; first < end; first += kPositions) {
      const Block<Element> block = block_at(kv_head, first);
      Block<Element> next = {};
      if (first + kPositions < end) {
        next = block_at(kv_head, first + kPositions);
      } else if (kv_head + 1 < end_head) {
        next = block_at(kv_head + 1, begin);
      }
      attend_block<Simd>(block, next, static_cast<int>(call.head_dim), state);
    }
    scatter_outputs(call, task, kv_head, state);
  }
}

template <class Simd>
void attend(const AttentionCall& call, const AttentionTask& task) {
  switch (call.type) {
    case CacheType::kFloat32:
      attend_over<Simd, float>(call, task);
      break;
    case CacheType::kFloat16:
      attend_over<Simd, uint16_t>(call, task);
      break;
    default:
      attend_over<Simd, int8_t>(call, task);
  }
}

}  // namespace
}  // namespace hearth
