// Attention to a block in half precision, if instructions multiply pairs of bfloat16. Queries,
// keys, weights and values are rounded to bfloat16. Sums are float32, each in one order.
#pragma once

#include <cstring>

#include "attention_block.h"
#include "half.h"

namespace hearth {
namespace {

// Sums of products of 32-bit words, each of which is a pair of bfloat16.
template <class Simd>
struct BFloat16Pairs {
  using Sums = typename Simd::Vector;
  static Sums zeros() { return Simd::set(0.0f); }
  static Sums add(Sums sums, typename Simd::Ints factors, typename Simd::Ints columns) {
    return Simd::add_pairs(sums, factors, columns);
  }
};

constexpr int kPairDims = 2;
constexpr int padded(int dims) { return (dims + kPairsStep - 1) / kPairsStep * kPairsStep; }

inline void round_query(const float* query, int head_dim, uint16_t* to) {
  for (int i = 0; i < head_dim; ++i) {
    to[i] = float_to_bfloat16(query[i]);
  }
  for (int i = head_dim; i < padded(head_dim); ++i) {
    to[i] = 0;
  }
}

// Returns the halves of a whole block, such that whole vectors can be read. They stay where they
// are, or are copied to `space` with zeros around them, which changes `slot`.
inline const uint16_t* whole_vectors(const char* from, int count, int dims, bool is_whole,
                                     uint16_t* space, int& slot) {
  const auto* halves = reinterpret_cast<const uint16_t*>(from);
  slot = dims;
  if (count == kPositions && is_whole) {
    return halves;
  }
  slot = padded(dims) + kPairsStep;
  std::memset(space, 0, sizeof(uint16_t) * static_cast<size_t>(slot) * kPositions);
  for (int position = 0; position < count; ++position) {
    std::memcpy(space + position * slot, halves + position * dims,
                sizeof(uint16_t) * static_cast<size_t>(dims));
  }
  return space;
}

template <class Simd>
void attend_bfloat16(const AttentionCall& call, const Block& block, const Block& next,
                     const Queries& queries, AttentionState& state) {
  constexpr int kLanes = Simd::kLanes;
  constexpr int kWeightPairs = kPositions / kPairDims;
  const auto head_dim = static_cast<int>(call.head_dim);
  const auto value_dim = static_cast<int>(call.value_dim);
  const bool has_values = block.values != block.keys;
  const bool is_whole = head_dim % kPairsStep == 0 && value_dim % kLanes == 0;
  const int64_t next_bytes = next.count * slot_bytes(call.type, head_dim);
  alignas(64) uint16_t space[kPositions * (kMaxPadded + kPairsStep)];
  alignas(64) uint16_t rounded[kPositions * kMaxPadded];
  alignas(64) uint16_t pairs[kPositions * kMaxPadded];
  int slot;

  const uint16_t* halves = whole_vectors(block.keys, block.count, head_dim, is_whole, space, slot);
  const int dims = padded(head_dim);
  Prefetch next_keys(next.keys, next_bytes, kPositions * dims / kPairsStep);
  for (int position = 0; position < kPositions; ++position) {
    for (int i = 0; i < dims; i += kPairsStep) {
      next_keys.step();
      const uint16_t* from = halves + position * slot + i;
      Simd::store_bfloat16s(rounded + position * dims + i, Simd::load_half(from),
                            Simd::load_half(from + kLanes));
    }
  }
  transpose_words<typename Simd::Square>(rounded, dims * static_cast<int64_t>(sizeof(uint16_t)),
                                         dims / kPairDims, pairs);
  word_product<Simd, BFloat16Pairs<Simd>, kMaxPadded * sizeof(uint16_t)>(
      queries.count, state.bfloat16s + queries.first * kMaxPadded, pairs, kPositions,
      dims / kPairDims,
      [&](int query, int position, typename Simd::Vector sums) {
        Simd::store(state.scores + query * kPositions + position, sums);
      },
      Prefetch());
  weigh_all<Simd>(call, block, queries, state);

  if (has_values) {
    halves = whole_vectors(block.values, block.count, head_dim, is_whole, space, slot);
  }
  const int columns = (value_dim + kLanes - 1) / kLanes * kLanes;
  Prefetch next_values(next.values, has_values ? next_bytes : 0, kWeightPairs * columns / kLanes);
  for (int position = 0; position < kPositions; position += kPairDims) {
    const uint16_t* first = halves + position * slot + head_dim - value_dim;
    for (int i = 0; i < columns; i += kLanes) {
      next_values.step();
      Simd::store_bfloat16_pairs(pairs + position * columns + kPairDims * i,
                                 Simd::load_half(first + i), Simd::load_half(first + slot + i));
    }
  }
  alignas(64) uint16_t weights[kMaxQueries * kPositions];
  for (int i = 0; i < queries.count * kPositions; i += kPairDims * kLanes) {
    Simd::store_bfloat16s(weights + i, Simd::load(state.scores + i),
                          Simd::load(state.scores + i + kLanes));
  }
  float* outputs = state.outputs + queries.first * value_dim;
  word_product<Simd, BFloat16Pairs<Simd>, kPositions * sizeof(uint16_t)>(
      queries.count, weights, pairs, columns, kWeightPairs,
      [&](int query, int column, typename Simd::Vector sums) {
        add_columns<Simd>(1.0f, sums, value_dim - column, outputs + query * value_dim + column);
      },
      Prefetch());
}

}  // namespace
}  // namespace hearth
