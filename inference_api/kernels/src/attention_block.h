// Attention of some queries to a block of positions. Softmax is updated block by block (Milakov and
// Gimelshein 2018, arXiv 1805.02867), so that keys and values are read once and scores stay in the
// first level cache.
#pragma once

#include "attention_product.h"
#include "kernels.h"
#include "simd.h"

namespace hearth {
namespace {

constexpr int kPositions = kPageTokens;  // positions of a block
constexpr float kMinusInfinity = -__builtin_inff();

// A query's softmax over the positions seen so far.
struct Softmax {
  float maximum = kMinusInfinity;  // largest score
  float sum = 0.0f;                // sum of exp(score - maximum)
};

// to[i] += factor * products[i], for the first `count` columns of a vector.
template <class Simd>
void add_columns(float factor, typename Simd::Vector products, int count, float* to) {
  if (count >= Simd::kLanes) {
    Simd::store(to, Simd::multiply_add(Simd::set(factor), products, Simd::load(to)));
    return;
  }
  alignas(64) float last[Simd::kLanes];
  Simd::store(last, products);
  for (int i = 0; i < count; ++i) {
    to[i] = fused_multiply_add(factor, last[i], to[i]);
  }
}

constexpr int kPairsStep = 32;  // dimensions of two vectors, which are rounded together
constexpr int kMaxPadded = kMaxHeadDim / kPairsStep * kPairsStep;
static_assert(kMaxPadded == kMaxHeadDim);

// Queries as bytes, for caches of bytes: see attention_bytes.h.
struct ByteQueries {
  alignas(64) int8_t steps[kMaxQueries * kMaxHeadDim];             // rows kMaxHeadDim apart
  float scales[kMaxQueries];                                       // the value of a step
  int32_t negative_sums[kMaxQueries][cached_groups(kMaxHeadDim)];  // for groups of dimensions
};

// One task's queries, ordered by token and then group, and all intermediate results.
struct AttentionState {
  alignas(64) float queries[kMaxQueries * kMaxHeadDim];  // [query][head_dim], scaled
  alignas(64) float outputs[kMaxQueries * kMaxHeadDim];  // [query][value_dim]
  alignas(64) float keys[kMaxHeadDim * kPositions];      // a block, [head_dim][position]
  alignas(64) float scores[kMaxQueries * kPositions];    // [query][position], then weights
  ByteQueries bytes;
  alignas(64) uint16_t bfloat16s[kMaxQueries * kMaxPadded];  // queries, for attention_bfloat16.h
  Softmax softmax[kMaxQueries];
  int64_t begins[kMaxQueries];  // positions that a query sees: from begins…
  int64_t ends[kMaxQueries];    // …to before ends
  int num_queries;
};

// Converts keys [kPositions][slot] to floats [head_dim][kPositions].
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

// Computes the scores of one query, with the same bits as `product` of transposed keys.
template <class Simd, class Element>
void score(const float* query, const Element* keys, int slot, int head_dim, float* scores,
           Prefetch prefetch) {
  constexpr int kLanes = Simd::kLanes;
  constexpr int kVectors = 4;  // vectors of sums that do not wait for each other
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

// Replaces scores by exp(score - maximum). Returns their sum.
template <class Simd>
inline __attribute__((always_inline)) float exponentiate(float* scores, float maximum) {
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

// Turns a query's scores of one block into weights, and rescales its earlier sums.
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
  // While nothing has been seen, weights are zero for any maximum.
  const float maximum = softmax.maximum == kMinusInfinity ? 0.0f : softmax.maximum;
  softmax.sum += exponentiate<Simd>(scores, maximum);
}

// Returns a whole block of keys, in place, or copied to `space` with zeros after `count` positions.
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

// `count` positions of a key-value head in the cache. Values may be part of keys.
struct Block {
  const char* keys;
  const char* values;
  int64_t first;
  int count;
};

// Some of a task's queries.
struct Queries {
  int first;
  int count;
};

// Attends to one block, and fetches the next one meanwhile.
using AttendBlock = void (*)(const AttentionCall& call, const Block& block, const Block& next,
                             const Queries& queries, AttentionState& state);

// Computes scores[query][position] over `dims` dimensions.
template <class Simd, class Element>
void score_all(int num_queries, const float* vectors, int vector_stride, const Element* keys,
               int slot, int dims, float* transposed, float* scores, Prefetch prefetch) {
  if (num_queries == 1) {
    score<typename Simd::Square>(vectors, keys, slot, dims, scores, prefetch);
    return;
  }
  transpose_keys<typename Simd::Square>(keys, slot, dims, transposed);
  for (int i = 0; i < num_queries * kPositions; ++i) {
    scores[i] = 0.0f;
  }
  product<Simd>(num_queries, kPositions, vectors, vector_stride, transposed, kPositions, dims,
                scores, kPositions, prefetch);
}

// Turns scores into weights.
template <class Simd>
void weigh_all(const AttentionCall& call, const Block& block, const Queries& queries,
               AttentionState& state) {
  for (int i = 0; i < queries.count; ++i) {
    const int query = queries.first + i;
    update_softmax<Simd>(state.scores + i * kPositions, state.begins[query] - block.first,
                         state.ends[query] - block.first, call.value_dim, state.softmax[query],
                         state.outputs + query * call.value_dim);
  }
}

// Adds the weights of a block times its values to outputs[query][column].
template <class Simd, class Element>
void add_values(int num_queries, int columns, const float* weights, const Element* values, int slot,
                int count, float* outputs, int value_dim, Prefetch prefetch) {
  if constexpr (Simd::kLanes > 1) {
    product<Simd>(num_queries, columns, weights, kPositions, values, slot, count, outputs,
                  value_dim, prefetch);
  } else {  // no instruction converts values, so they become floats once, not for every query
    float floats[kPositions * kMaxHeadDim];
    for (int position = 0; position < count; ++position) {
      for (int i = 0; i < columns; ++i) {
        floats[position * columns + i] = load_element<Simd>(values + position * slot + i);
      }
    }
    product<Simd>(num_queries, columns, weights, kPositions, floats, columns, count, outputs,
                  value_dim, prefetch);
  }
}

template <class Simd, class Element>
void attend_block(const AttentionCall& call, const Block& block, const Block& next,
                  const Queries& queries, AttentionState& state) {
  const auto head_dim = static_cast<int>(call.head_dim);
  const auto value_dim = static_cast<int>(call.value_dim);
  const float* vectors = state.queries + queries.first * head_dim;
  float* outputs = state.outputs + queries.first * value_dim;
  const int slot = head_dim;
  const int64_t next_size = next.count * slot * static_cast<int64_t>(sizeof(Element));
  const Prefetch next_keys(next.keys, next_size, head_dim);
  const Prefetch next_values(next.values, next.values == next.keys ? 0 : next_size, block.count);
  alignas(64) Element space[kMaxHeadDim * kPositions];
  const Element* keys =
      whole_block(reinterpret_cast<const Element*>(block.keys), slot, block.count, space);
  const auto* block_values = reinterpret_cast<const Element*>(block.values);
  score_all<Simd>(queries.count, vectors, head_dim, keys, slot, head_dim, state.keys, state.scores,
                  next_keys);
  weigh_all<Simd>(call, block, queries, state);
  add_values<Simd>(queries.count, value_dim, state.scores, block_values + head_dim - value_dim,
                   slot, block.count, outputs, value_dim, next_values);
}

}  // namespace
}  // namespace hearth
