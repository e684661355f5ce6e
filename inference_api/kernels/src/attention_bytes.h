// Attention to a block of a cache whose numbers are steps times scales: bytes, or 4 bits.
//
// Queries and weights become bytes, too. Each query has a scale, and its weights have one for each
// block. The products are exact, so that a query's result does not depend on other queries.
#pragma once

#include <cstring>

#include "attention_block.h"
#include "quantise.h"

namespace hearth {
namespace {

constexpr int kQuadDims = kWordBytes;

constexpr int whole_quads(int dims) { return (dims + kQuadDims - 1) / kQuadDims * kQuadDims; }

// Returns the number of a key's or value's dimensions that share a scale.
inline int dims_of_group(const AttentionCall& call) {
  return call.type == CacheType::kInt4 ? kGroup : static_cast<int>(call.head_dim);
}

inline void quantise_query(const float* query, const AttentionCall& call, int index,
                           ByteQueries& to) {
  const auto head_dim = static_cast<int>(call.head_dim);
  const int group_dims = dims_of_group(call);
  const ByteScale scale = byte_scale(query, head_dim);
  int8_t* steps = to.steps + index * kMaxHeadDim;
  to.scales[index] = scale.scale;
  for (int first = 0, group = 0; first < head_dim; first += group_dims, ++group) {
    const int end = first + group_dims < head_dim ? first + group_dims : head_dim;
    int32_t sum = 0;
    for (int i = first; i < end; ++i) {
      const int32_t step = to_byte(query[i], scale.inverse);
      steps[i] = static_cast<int8_t>(step);
      sum += step;
    }
    to.negative_sums[index][group] = -sum;
  }
  for (int i = head_dim; i < whole_quads(head_dim); ++i) {
    steps[i] = 0;
  }
}

// Keys or values of a block, in groups with a scale each.
struct CachedBytes {
  static constexpr int kMaxGroups = static_cast<int>(cached_groups(kMaxHeadDim));
  static constexpr int kMaxSlot = static_cast<int>(slot_bytes(CacheType::kInt8, kMaxHeadDim));
  alignas(64) int8_t space[kPositions * kMaxSlot];
  const int8_t* steps;  // [position][slot], zeros after the last position
  int slot;
  alignas(64) float scales[kMaxGroups][kPositions];  // the value of a step

  template <class Simd>
  void fill(CacheType type, const char* vectors, int count, int head_dim) {
    if (type == CacheType::kInt4) {
      fill_from_groups<Simd>(vectors, count, static_cast<int>(cached_groups(head_dim)));
      return;
    }
    slot = static_cast<int>(slot_bytes(type, head_dim));
    steps = whole_block(reinterpret_cast<const int8_t*>(vectors), slot, count, space);
    for (int position = 0; position < kPositions; ++position) {
      std::memcpy(scales[0] + position, steps + position * slot + head_dim, sizeof(float));
    }
  }

 private:
  using Bytes = uint8_t __attribute__((vector_size(kGroup / 2)));

  // Returns the steps in bits 3 to 6 of bytes, times eight; negated if `flip` is all ones.
  static Bytes eights(Bytes steps, uint8_t flip) {
    constexpr uint8_t kSteps = 0x78;
    constexpr uint8_t kSign = 0x40;
    return ((((steps & kSteps) ^ kSign) - kSign) ^ flip) - flip;
  }

  // Makes scales positive, and negates the steps of negative ones.
  template <class Simd>
  void fill_from_groups(const char* vectors, int count, int groups) {
    constexpr float kEighth = 1.0f / 8;
    constexpr uint16_t kHalfSign = 0x8000;
    alignas(64) uint16_t halves[kMaxGroups][kPositions];
    const auto* from = reinterpret_cast<const CachedGroup*>(vectors);
    int8_t* to = space;
    for (int position = 0; position < count; ++position) {
      for (int group = 0; group < groups; ++group, ++from, to += kGroup) {
        halves[group][position] = from->scale & static_cast<uint16_t>(~kHalfSign);
        const auto flip = static_cast<uint8_t>((from->scale & kHalfSign) == 0 ? 0 : 0xff);
        Bytes both;
        std::memcpy(&both, from->steps, sizeof both);
        const Bytes first = eights(both >> 1, flip);
        const Bytes second = eights(both << 3, flip);
        std::memcpy(to, &first, sizeof first);
        std::memcpy(to + kGroup / 2, &second, sizeof second);
      }
    }
    steps = space;
    slot = groups * kGroup;
    for (int i = count * slot; i < kPositions * slot; ++i) {
      space[i] = 0;
    }
    for (int group = 0; group < groups; ++group) {
      for (int position = count; position < kPositions; ++position) {
        halves[group][position] = 0;
      }
      for (int position = 0; position < kPositions; position += Simd::kLanes) {
        const auto scale = Simd::load_half(halves[group] + position);
        Simd::store(scales[group] + position, Simd::multiply(scale, Simd::set(kEighth)));
      }
    }
  }
};

// A group of dimensions.
struct Dims {
  int group;
  int first;
  int count;
};

// Converts bytes of keys [kPositions][slot] to quads [dims / 4][kPositions][4], with Simd's offset.
template <class Simd>
void quads_of_keys(const int8_t* keys, int slot, int dims, int8_t* quads) {
  using Square = typename Simd::Square;
  const int whole_dims = dims / (kWordBytes * Square::kLanes) * (kWordBytes * Square::kLanes);
  transpose_words<Square>(keys, slot, whole_dims / kWordBytes, quads);
  for (int i = whole_dims; i < whole_quads(dims); ++i) {
    int8_t* to = quads + i / kQuadDims * kQuadDims * kPositions + i % kQuadDims;
    for (int position = 0; position < kPositions; ++position) {
      to[kQuadDims * position] = i < dims ? keys[position * slot + i] : int8_t{0};
    }
  }
  for (int i = 0; i < whole_quads(dims) * kPositions; ++i) {
    quads[i] = static_cast<int8_t>(quads[i] ^ Simd::kQuadOffset);
  }
}

// Converts bytes of values [kPositions][slot] to quads [kPositions / 4][columns][4]. Returns the
// number of columns, rounded up to a multiple of 16 with zeros.
template <class Simd>
int quads_of_values(const int8_t* values, int slot, int count, int8_t* quads) {
  constexpr int kColumns = 16;
  const int whole = count / kColumns * kColumns;
  const int columns = whole < count ? whole + kColumns : whole;
  for (int position = 0; position < kPositions; position += kQuadDims) {
    const int8_t* rows = values + position * slot;
    for (int i = 0; i < whole; i += kColumns) {
      Simd::Square::store_quads(quads + kQuadDims * i, rows + i, slot);
    }
    for (int i = whole; i < columns; ++i) {
      for (int row = 0; row < kQuadDims; ++row) {
        quads[kQuadDims * i + row] = i < count ? rows[row * slot + i] : int8_t{0};
      }
    }
    quads += kQuadDims * columns;
  }
  return columns;
}

// Adds a group of dimensions to scores[query][position]. The first group sets them.
template <class Simd>
void add_scores(const Queries& queries, const CachedBytes& keys, const Dims& dims,
                Prefetch prefetch, AttentionState& state) {
  const float* scales = keys.scales[dims.group];
  alignas(64) int8_t quads[kMaxHeadDim * kPositions];
  quads_of_keys<Simd>(keys.steps + dims.first, keys.slot, dims.count, quads);
  word_product<Simd, SignedFactors<Simd>, kMaxHeadDim>(
      queries.count, state.bytes.steps + queries.first * kMaxHeadDim + dims.first, quads,
      kPositions, whole_quads(dims.count) / kQuadDims,
      [&](int i, int position, typename Simd::Ints sums) {
        const int query = queries.first + i;
        float* to = state.scores + i * kPositions + position;
        const int32_t start = Simd::kQuadOffset * state.bytes.negative_sums[query][dims.group];
        const auto products = Simd::to_floats(sums, start);
        const auto scale =
            Simd::multiply(Simd::load(scales + position), Simd::set(state.bytes.scales[query]));
        Simd::store(to, dims.group == 0 ? Simd::multiply(scale, products)
                                        : Simd::multiply_add(scale, products, Simd::load(to)));
      },
      prefetch);
}

// Converts weights times scales, none of which is negative, to bytes with a scale for each query.
template <class Simd>
void quantise_weights(int num_queries, const float* weights, const float* scales, int8_t* to,
                      float* to_scales) {
  float sum = 0.0f;
  for (int position = 0; position < kPositions; ++position) {
    sum += scales[position];
  }
  const float nothing = sum * 0.0f;  // NaN if a scale is not finite
  for (int query = 0; query < num_queries; ++query) {
    typename Simd::Vector scaled[kPositions / Simd::kLanes];
    auto largest = Simd::set(0.0f);
#pragma GCC unroll 2
    for (int i = 0; i < kPositions / Simd::kLanes; ++i) {
      const int position = i * Simd::kLanes;
      scaled[i] = Simd::multiply(Simd::load(weights + query * kPositions + position),
                                 Simd::load(scales + position));
      largest = Simd::max(largest, scaled[i]);
    }
    const float most = Simd::largest_of(largest);
    const bool is_used = most >= kSmallestAbsMax;
    const auto inverse = Simd::set(is_used ? kInt8Max / most : 0.0f);
    to_scales[query] = is_used ? most / kInt8Max + nothing : nothing;
    for (int i = 0; i < kPositions / Simd::kLanes; ++i) {
      Simd::store_bytes(to + query * kPositions + i * Simd::kLanes,
                        Simd::multiply(scaled[i], inverse));
    }
  }
}

// Adds the weights of a block times some dimensions of its values to outputs[query][column].
template <class Simd>
void add_weighed(const AttentionCall& call, const Queries& queries, const CachedBytes& values,
                 const Dims& dims, Prefetch prefetch, AttentionState& state) {
  const auto value_dim = static_cast<int>(call.value_dim);
  const int begin = static_cast<int>(call.head_dim) - value_dim;  // of the values in keys
  float* outputs = state.outputs + queries.first * value_dim + dims.first - begin;
  const float* scales = values.scales[dims.group];
  alignas(64) int8_t weights[kMaxQueries * kPositions];
  alignas(64) int8_t quads[kMaxHeadDim * kPositions];
  float weight_scales[kMaxQueries];
  quantise_weights<Simd>(queries.count, state.scores, scales, weights, weight_scales);
  const int columns =
      quads_of_values<Simd>(values.steps + dims.first, values.slot, dims.count, quads);
  word_product<Simd, UnsignedFactors<Simd>, kPositions>(
      queries.count, weights, quads, columns, kPositions / kQuadDims,
      [&](int query, int column, typename Simd::Ints sums) {
        add_columns<Simd>(weight_scales[query], Simd::to_floats(sums, 0), dims.count - column,
                          outputs + query * value_dim + column);
      },
      prefetch);
}

template <class Simd>
void attend_bytes(const AttentionCall& call, const Block& block, const Block& next,
                  const Queries& queries, AttentionState& state) {
  const auto head_dim = static_cast<int>(call.head_dim);
  const bool has_values = block.values != block.keys;
  CachedBytes bytes;
  bytes.fill<Simd>(call.type, block.keys, block.count, head_dim);
  const int group_dims = dims_of_group(call);
  const int groups = (head_dim + group_dims - 1) / group_dims;
  const int64_t next_bytes = next.count * slot_bytes(call.type, head_dim) / groups;
  const auto dims_of = [&](int group, int begin) {
    const int first = group * group_dims < begin ? begin : group * group_dims;
    const int end = (group + 1) * group_dims;
    return Dims{group, first, (end < head_dim ? end : head_dim) - first};
  };
  for (int group = 0; group < groups; ++group) {
    const Dims dims = dims_of(group, 0);
    const Prefetch fetch(next.keys + group * next_bytes, next_bytes,
                         whole_quads(dims.count) / kQuadDims);
    add_scores<Simd>(queries, bytes, dims, fetch, state);
  }
  weigh_all<Simd>(call, block, queries, state);
  if (has_values) {
    bytes.fill<Simd>(call.type, block.values, block.count, head_dim);
  }
  const int begin = head_dim - static_cast<int>(call.value_dim);
  for (int group = begin / group_dims; group < groups; ++group) {
    const int64_t size = has_values ? next_bytes : 0;
    const Prefetch fetch(next.values + group * next_bytes, size, kPositions / kQuadDims);
    add_weighed<Simd>(call, queries, bytes, dims_of(group, begin), fetch, state);
  }
}

}  // namespace
}  // namespace hearth
