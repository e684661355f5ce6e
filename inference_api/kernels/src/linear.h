// The matrix product, for any instruction set. `Isa` brings registers, and formats Isa::Int8 and
// Isa::Int4 that say how a quad of weights is loaded, multiplied and summed; weights of other forms
// are taken apart first, see unpacked.h, and formats of weights that are not quantised are below.
//
// A row's result depends on that row alone: the sums of a group are integers, exact in any order,
// and groups are added in their order whatever the number of rows in the tile. Products of floats
// are added one by one, in the order of the inputs; those of bfloat16 are exact, so that every
// variant has the same bits. Only what is below 2^-126 differs: vdpbf16ps takes it for zero.
#pragma once

#include <algorithm>
#include <type_traits>

#include "activation.h"
#include "kernels.h"
#include "quantise.h"
#include "unpacked.h"

namespace hearth {
namespace {

template <int kLines>
void prefetch(const char* bytes) {
#pragma GCC unroll 32
  for (int line = 0; line < kLines; ++line) {
    __builtin_prefetch(bytes + line * kCacheLine, 0, 2);  // to be read, into the second level cache
  }
}

// Formats of floats: a step multiplies so many inputs, by what a group of activations is taken as.
template <class Isa>
struct Float32 {
  using Block = Float32Block;
  using Taken = FloatGroup;
  static constexpr int kInputs = 1;
  static typename Isa::Floats weights(const Block& block, int input, int vector) {
    return Isa::load(block.values[input] + vector * Isa::kLanes);
  }
  static typename Isa::Floats activations(const FloatGroup& x, int input) {
    return Isa::set(x.values[input]);
  }
  static typename Isa::Floats add_product(typename Isa::Floats weights, typename Isa::Floats x,
                                          typename Isa::Floats total) {
    return Isa::multiply_add(weights, x, total);
  }
};

// Weights are widened, where no instruction multiplies pairs.
template <class Isa, class = void>
struct BFloat16 : Float32<Isa> {
  using Block = BFloat16Block;
  static typename Isa::Floats weights(const Block& block, int input, int vector) {
    return Isa::bfloat16s(block.pairs[input / kPair] + vector * Isa::kLanes, place_in_pair(input));
  }
};
template <class Isa>
struct BFloat16<Isa, std::void_t<typename Isa::Pairs>> : Isa::Pairs {};

template <class Format>
using Group = typename Format::Block::Group;

// Groups of activations that a block meets.
template <class Block>
constexpr int kBlockGroups = Block::kInputs / kGroup;

// Bytes and quads of a group of weights, and how many such groups meet one of activations.
template <class Block>
constexpr size_t kGroupBytes = sizeof(Block) / Block::kScales;
template <class Block>
constexpr int kGroupQuads = Block::kInputs / Block::kScales / kQuad;
template <class Block>
constexpr int kParts = kQuads / kGroupQuads<Block>;
static_assert(kParts<Int8Block> == 1 && kParts<UnpackedOf<Q6KBlock>> == 2);

// Minus the sum of what a group of weights meets.
template <class Block>
int32_t negative_sum(const ActivationGroup& x, int part) {
  return kParts<Block> == 1 ? x.negative_sum : x.negative_half_sums[part];
}

// The same times the activations' scale.
template <class Block>
float scaled_negative_sum(const ActivationGroup& x, int part) {
  return kParts<Block> == 1 ? x.scaled_negative_sum
                            : x.scale * static_cast<float>(negative_sum<Block>(x, part));
}

// Quads whose products a format adds up at once.
template <class Format, class = void>
constexpr int kRun = 1;
template <class Format>
constexpr int kRun<Format, std::void_t<decltype(Format::kRun)>> = Format::kRun;

// Rows of a tile.
template <class Isa, class Format>
constexpr int max_rows() {
  if constexpr (std::is_same_v<Group<Format>, FloatGroup>) {
    return Isa::kMaxFloatRows;
  } else if constexpr (kRun<Format> > 1) {
    return Isa::kMaxRowsOfRuns;
  } else {
    return Isa::kMaxRows;
  }
}

// Vectors of a panel that a tile of so many rows works on together.
template <class Isa, class Format>
constexpr int tile_vectors(int num_rows) {
  if constexpr (kRun<Format> > 1) {
    return num_rows == 1 ? 1 : Isa::kVectorsOfRuns;
  } else {
    return num_rows == 1 ? Isa::kVectorsOfOneRow : Isa::kVectors;
  }
}

// Sums of products: of vectors of a panel, for each row.
template <class Isa, int kVectors, int kRows>
using GroupSums = typename Isa::Sums[kVectors][kRows];

// The products of a group of weights and of part `part` of activations `x`, which rows have
// num_groups apart, from vector `first` on.
template <class Isa, class Format, int kVectors, int kRows, class Values>
inline __attribute__((always_inline)) void multiply_group(const Values& values, int first,
                                                          const ActivationGroup* x, int part,
                                                          int64_t num_groups,
                                                          GroupSums<Isa, kVectors, kRows>& sums) {
  using Block = typename Format::Block;
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
    const auto start = Format::start(negative_sum<Block>(x[row * num_groups], part));
#pragma GCC unroll 4
    for (int vector = 0; vector < kVectors; ++vector) {
      sums[vector][row] = start;
    }
  }
  constexpr int kStep = kRun<Format>;
#pragma GCC unroll 8
  for (int quad = 0; quad < kGroupQuads<Block>; quad += kStep) {
    typename Format::Weights weights[kVectors][kStep];
#pragma GCC unroll 4
    for (int vector = 0; vector < kVectors; ++vector) {
#pragma GCC unroll 4
      for (int i = 0; i < kStep; ++i) {
        weights[vector][i] = Format::weights(values, quad + i, first + vector);
      }
    }
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
      const int8_t* const from =
          x[row * num_groups].values + (part * kGroupQuads<Block> + quad) * kQuad;
      decltype(Isa::broadcast(from)) quads[kStep];
#pragma GCC unroll 4
      for (int i = 0; i < kStep; ++i) {
        quads[i] = Isa::broadcast(from + i * kQuad);
      }
#pragma GCC unroll 4
      for (int vector = 0; vector < kVectors; ++vector) {
        auto& sum = sums[vector][row];
        if constexpr (kStep == 1) {
          sum = Format::dot(sum, weights[vector][0], quads[0]);
        } else {
          sum = Format::dot(sum, weights[vector], quads);
        }
      }
    }
  }
}

template <class Format, class = void>
constexpr bool kHasMinima = false;
template <class Format>
constexpr bool kHasMinima<Format, std::enable_if_t<Format::kHasMinima>> = true;

// Adds a vector of sums to its totals.
template <class Isa, class Format, int kRows>
inline __attribute__((always_inline)) void add_scaled(
    const Scales<Isa, typename Format::Block>& scales, int group, int vector,
    const ActivationGroup* x, int part, int64_t num_groups, const typename Isa::Sums (&sums)[kRows],
    typename Isa::Floats (&totals)[kRows]) {
  using Block = typename Format::Block;
  const auto weight_scales = scales.scales(group, vector);
#pragma GCC unroll 8
  for (int row = 0; row < kRows; ++row) {
    const ActivationGroup& activations = x[row * num_groups];
    const auto sum = Format::finish(sums[row], negative_sum<Block>(activations, part));
    totals[row] =
        Isa::multiply_add(sum, Isa::multiply(weight_scales, activations.scale), totals[row]);
  }
  if constexpr (kHasMinima<Format>) {
    const auto minima = scales.minima(group, vector);
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
      const auto negative = Isa::set(scaled_negative_sum<Block>(x[row * num_groups], part));
      totals[row] = Isa::multiply_add(minima, negative, totals[row]);
    }
  }
}

// Groups of activations that a tile meets: `count` of each row, which has them `stride` apart from
// the row before it.
template <class Group>
struct Rows {
  const Group* first;
  int64_t count;
  int64_t stride;
};

// Adds to `out` `kRows` rows of activations times blocks of one panel; with every group, kLines
// lines are fetched. The loops over rows and vectors must be unrolled, or the sums would not stay
// in registers; check the disassembly after any change. kLines is a template parameter, because a
// test inside the loop costs GCC the registers.
template <class Isa, class Format, int kRows, int kLines>
void multiply_tile(const typename Format::Block* blocks, const char* fetched,
                   const Rows<ActivationGroup>& rows, float (*out)[kPanel]) {
  using Block = typename Format::Block;
  const int64_t num_groups = rows.stride;
  constexpr int kPanelVectors = kPanel / Isa::kLanes;
  constexpr int kVectors = tile_vectors<Isa, Format>(kRows);
  typename Isa::Floats totals[kPanelVectors][kRows];
  for (int vector = 0; vector < kPanelVectors; ++vector) {
    for (int row = 0; row < kRows; ++row) {
      totals[vector][row] = Isa::load(out[row] + vector * Isa::kLanes);
    }
  }
  for (int64_t begin = 0; begin < rows.count; begin += kBlockGroups<Block>, ++blocks) {
    const Scales<Isa, Block> scales(*blocks);
    const auto rest = static_cast<int>(rows.count - begin) * kParts<Block>;
    const int num_scales = Block::kScales == 1 || Block::kScales < rest ? Block::kScales : rest;
#pragma GCC unroll 1
    for (int group = 0; group < num_scales; ++group) {
      const ActivationGroup* x = rows.first + begin + group / kParts<Block>;
      const int part = group % kParts<Block>;
      prefetch<kLines>(fetched + (begin * kParts<Block> + group) * kLines * kCacheLine);
#pragma GCC unroll 1  // registers suffice for one turn only…
      for (int first = 0; first < kPanelVectors; first += kVectors) {
        if (kVectors < kPanelVectors) {  // …and not for keeping activations from turn to turn
          __atomic_signal_fence(__ATOMIC_SEQ_CST);
        }
        GroupSums<Isa, kVectors, kRows> sums;
        multiply_group<Isa, Format, kVectors, kRows>(values_of(*blocks, group), first, x, part,
                                                     num_groups, sums);
#pragma GCC unroll 4
        for (int vector = 0; vector < kVectors; ++vector) {
          add_scaled<Isa, Format, kRows>(scales, group, first + vector, x, part, num_groups,
                                         sums[vector], totals[first + vector]);
        }
      }
    }
  }
  for (int vector = 0; vector < kPanelVectors; ++vector) {
    for (int row = 0; row < kRows; ++row) {
      Isa::store(out[row] + vector * Isa::kLanes, totals[vector][row]);
    }
  }
}

// A group of each row as a format of floats takes it: made anew, or as it is.
template <class Format, int kRows, class Taken = typename Format::Taken>
class TakenRows {
 public:
  TakenRows(const FloatGroup* rows, int64_t stride) {
#pragma GCC unroll 8
    for (int row = 0; row < kRows; ++row) {
      Format::take(rows[row * stride], taken_[row]);
    }
  }
  const Taken& of(int row) const { return taken_[row]; }

 private:
  Taken taken_[kRows];
};

template <class Format, int kRows>
class TakenRows<Format, kRows, FloatGroup> {
 public:
  TakenRows(const FloatGroup* rows, int64_t stride) : rows_(rows), stride_(stride) {}
  const FloatGroup& of(int row) const { return rows_[row * stride_]; }

 private:
  const FloatGroup* rows_;
  int64_t stride_;
};

// The same for weights that are not quantised.
template <class Isa, class Format, int kRows, int kLines>
void multiply_tile(const typename Format::Block* blocks, const char* fetched,
                   const Rows<FloatGroup>& rows, float (*out)[kPanel]) {
  const int64_t num_groups = rows.stride;
  constexpr int kPanelVectors = kPanel / Isa::kLanes;
  constexpr int kVectors = Isa::kFloatVectors;  // of the panel that are worked on together
  constexpr int kQuadLines = kLines / kQuads;
  for (int first = 0; first < kPanelVectors; first += kVectors) {
    typename Isa::Floats totals[kVectors][kRows];
    for (auto& vector : totals) {
      for (auto& total : vector) {
        total = Isa::zero();
      }
    }
    for (int64_t group = 0; group < num_groups; ++group) {
      const typename Format::Block& block = blocks[group];
      const TakenRows<Format, kRows> x(rows.first + group, num_groups);
#pragma GCC unroll 1
      for (int quad = 0; quad < kQuads; ++quad) {
        if (first == 0) {
          prefetch<kQuadLines>(fetched + (group * kQuads + quad) * kQuadLines * kCacheLine);
        }
#pragma GCC unroll 4
        for (int input = quad * kQuad; input < (quad + 1) * kQuad; input += Format::kInputs) {
          decltype(Format::weights(block, input, first)) weights[kVectors];
#pragma GCC unroll 4
          for (int vector = 0; vector < kVectors; ++vector) {
            weights[vector] = Format::weights(block, input, first + vector);
          }
#pragma GCC unroll 8
          for (int row = 0; row < kRows; ++row) {
            const auto activations = Format::activations(x.of(row), input);
#pragma GCC unroll 4
            for (int vector = 0; vector < kVectors; ++vector) {
              auto& total = totals[vector][row];
              total = Format::add_product(weights[vector], activations, total);
            }
          }
        }
      }
    }
    for (int vector = 0; vector < kVectors; ++vector) {
      for (int row = 0; row < kRows; ++row) {
        Isa::store(out[row] + (first + vector) * Isa::kLanes, totals[vector][row]);
      }
    }
  }
}

template <class Format>
using Tile = void (*)(const typename Format::Block* blocks, const char* fetched,
                      const Rows<Group<Format>>& rows, float (*out)[kPanel]);

template <class Isa, class Format, int kLines>
Tile<Format> tile_for(int64_t num_rows) {
  constexpr int kMax = max_rows<Isa, Format>();
  static_assert(kMax <= 8);
  constexpr Tile<Format> kTiles[] = {
      multiply_tile<Isa, Format, 1, kLines>,
      multiply_tile<Isa, Format, std::min(kMax, 2), kLines>,
      multiply_tile<Isa, Format, std::min(kMax, 3), kLines>,
      multiply_tile<Isa, Format, std::min(kMax, 4), kLines>,
      multiply_tile<Isa, Format, std::min(kMax, 5), kLines>,
      multiply_tile<Isa, Format, std::min(kMax, 6), kLines>,
      multiply_tile<Isa, Format, std::min(kMax, 7), kLines>,
      multiply_tile<Isa, Format, std::min(kMax, 8), kLines>,
  };
  return kTiles[num_rows - 1];
}

// The blocks of a panel; part 1 is the panel that the gates of `panel` let pass.
template <class Block>
const Block* panel_blocks(const LinearCall& call, int64_t panel, int part) {
  return static_cast<const Block*>(call.blocks) +
         (panel + part * num_panels(call)) * (call.num_groups / kBlockGroups<Block>);
}

inline void add_bias(const LinearCall& call, int64_t panel, float* result) {
  if (call.bias == nullptr) {
    return;
  }
  const int64_t rest = call.num_outputs - panel * kPanel;
  for (int64_t i = 0; i < (rest < kPanel ? rest : kPanel); ++i) {
    result[i] += call.bias[panel * kPanel + i];
  }
}

inline void store_results(const float* result, int64_t count, float factor, bool is_added,
                          float* out) {
  for (int64_t i = 0; i < count; ++i) {
    out[i] = is_added ? out[i] + factor * result[i] : factor * result[i];
  }
}

// What is done with a panel's results of one row. The last panel may be padded.
template <class Simd>
void finish_row(const LinearCall& call, int64_t row, int64_t panel, float* result, float* passing) {
  const int64_t panels = num_panels(call);
  add_bias(call, panel, result);
  if (call.finish == Finish::kActivate) {
    if (call.is_gated) {
      add_bias(call, panels + panel, passing);
    }
    if (call.swiglu.limit > 0.0f) {
      pass_clamped<Simd>(call.swiglu, result, passing);
    } else {
      activate<Simd>(call.activation, result, call.is_gated ? passing : nullptr);
    }
    prepare_group(call.bits, result, call.activated, row * panels + panel);
    return;
  }
  const int64_t first = panel * kPanel;
  const int64_t rest = call.num_outputs - first;
  const int64_t count = rest < kPanel ? rest : kPanel;
  const int64_t place = call.places == nullptr ? row : call.places[row];
  const float factor = call.shares == nullptr ? call.factor : call.factor * call.shares[row];
  float* out = call.out + place * call.out_stride + first;
  const bool is_added = call.finish == Finish::kAdd;
  if (count == kPanel) {  // a loop of constant length
    store_results(result, kPanel, factor, is_added, out);
  } else {
    store_results(result, count, factor, is_added, out);
  }
}

// What the tiles of a panel fetch from memory while they multiply. A single tile fetches its own
// panel ahead: earlier than the processor would, which stops at every page. Where there are more,
// the first of them share the next panel, so that reading it overlaps with multiplying.
template <class Format>
constexpr int kAheadBytes = std::is_same_v<Group<Format>, FloatGroup> ? 8192 : 2304;

constexpr int share_lines(size_t group_bytes, int64_t shares) {
  const auto lines = static_cast<int64_t>((group_bytes + kCacheLine - 1) / kCacheLine);
  return static_cast<int>((lines + shares - 1) / shares);
}

// A tile for `num_rows` rows that fetches one of so many shares of a panel, or nothing for 0.
template <class Isa, class Format>
Tile<Format> tile_for(int64_t num_rows, int64_t shares) {
  constexpr size_t kBytes = kGroupBytes<typename Format::Block>;
  if constexpr (Isa::kFetches) {
    switch (shares) {
      case 0:
        break;
      case 1:
        return tile_for<Isa, Format, share_lines(kBytes, 1)>(num_rows);
      case 2:
        return tile_for<Isa, Format, share_lines(kBytes, 2)>(num_rows);
      default:
        return tile_for<Isa, Format, share_lines(kBytes, 4)>(num_rows);
    }
  }
  return tile_for<Isa, Format, 0>(num_rows);
}

// All rows times one panel, in tiles of nearly equal size.
template <class Isa, class Simd, class Format>
void multiply_panel(const LinearCall& call, int64_t panel, bool is_last) {
  using Block = typename Format::Block;
  constexpr int kMax = max_rows<Isa, Format>();
  const int num_parts = call.is_gated ? 2 : 1;
  const int64_t num_tiles = (call.num_rows + kMax - 1) / kMax;
  const int64_t shares = num_tiles < 2 ? 1 : num_tiles < 4 ? 2 : 4;
  const int64_t share_bytes =
      call.num_groups * kParts<Block> * share_lines(kGroupBytes<Block>, shares) * kCacheLine;
  alignas(kCacheLine) float results[2][kMax][kPanel];
  for (int64_t tile = 0; tile < num_tiles; ++tile) {
    const int64_t first = call.num_rows * tile / num_tiles;
    const int64_t count = call.num_rows * (tile + 1) / num_tiles - first;
    const auto* rows = static_cast<const Group<Format>*>(call.rows) + first * call.num_groups;
    const bool is_single = num_tiles == 1;
    const bool fetches = is_single || (tile < shares && !is_last);
    const auto multiply = tile_for<Isa, Format>(count, fetches ? shares : 0);
    std::memset(results, 0, sizeof results);
    for (int part = 0; part < num_parts; ++part) {
      const auto* blocks = panel_blocks<Block>(call, panel, part);
      const Block* later = is_single ? blocks : blocks + call.num_groups / kBlockGroups<Block>;
      const int64_t offset = is_single ? kAheadBytes<Format> : tile * share_bytes;
      multiply(blocks, reinterpret_cast<const char*>(later) + offset,
               {rows, call.num_groups, call.num_groups}, results[part]);
    }
    for (int64_t row = 0; row < count; ++row) {
      finish_row<Simd>(call, first + row, panel, results[0][row], results[1][row]);
    }
  }
}

constexpr int kApartRows = 128;  // that are multiplied by what was taken apart: bounds the results

// All rows times one panel of blocks of few bits. A single tile takes them as they are; for several
// they are taken apart, and the first tile fetches what is taken apart next.
template <class Isa, class Simd, class Packed>
void multiply_apart(const LinearCall& call, int64_t panel) {
  using Format = ApartOf<Isa, Packed>;
  using Block = typename Format::Block;
  constexpr int kMax = max_rows<Isa, Format>();
  constexpr int kLines = Isa::kFetches ? share_lines(kGroupBytes<Packed>, 1) : 0;
  const int num_parts = call.is_gated ? 2 : 1;
  Block unpacked;
  alignas(kCacheLine) float results[2][kApartRows][kPanel];
  for (int64_t first = 0; first < call.num_rows; first += kApartRows) {
    const int64_t rest = call.num_rows - first;
    const int64_t count = rest < kApartRows ? rest : kApartRows;
    const int64_t num_tiles = (count + kMax - 1) / kMax;
    const auto* rows = static_cast<const ActivationGroup*>(call.rows) + first * call.num_groups;
    for (int part = 0; part < num_parts; ++part) {
      std::memset(results[part], 0, static_cast<size_t>(count) * sizeof results[part][0]);
      const auto* blocks = panel_blocks<Packed>(call, panel, part);
      if (num_tiles == 1) {
        const auto multiply = tile_for<Isa, Whole<Isa, Packed>, kLines>(count);
        multiply(blocks, reinterpret_cast<const char*>(blocks) + kAheadBytes<Format>,
                 {rows, call.num_groups, call.num_groups}, results[part]);
        continue;
      }
      for (int64_t group = 0; group < call.num_groups; group += kSuperGroups) {
        const int64_t groups_left = call.num_groups - group;
        const int64_t groups = groups_left < kSuperGroups ? groups_left : kSuperGroups;
        for (int index = 0; index * kBlockGroups<Packed> < groups; ++index) {
          unpack<Isa>(*blocks++, index, unpacked);
        }
        for (int64_t tile = 0; tile < num_tiles; ++tile) {
          const int64_t begin = count * tile / num_tiles;
          const int64_t size = count * (tile + 1) / num_tiles - begin;
          const auto multiply =
              tile == 0 ? tile_for<Isa, Format, kLines>(size) : tile_for<Isa, Format, 0>(size);
          multiply(&unpacked, reinterpret_cast<const char*>(blocks),
                   {rows + begin * call.num_groups + group, groups, call.num_groups},
                   results[part] + begin);
        }
      }
    }
    for (int64_t row = 0; row < count; ++row) {
      finish_row<Simd>(call, first + row, panel, results[0][row], results[1][row]);
    }
  }
}

template <class Isa, class Simd, class Block>
void multiply_blocks(const LinearCall& call, int64_t panel, bool is_last) {
  if constexpr (std::is_same_v<Block, Float32Block>) {
    multiply_panel<Isa, Simd, Float32<Isa>>(call, panel, is_last);
  } else if constexpr (std::is_same_v<Block, BFloat16Block>) {
    multiply_panel<Isa, Simd, BFloat16<Isa>>(call, panel, is_last);
  } else if constexpr (std::is_same_v<Block, Int8Block>) {
    multiply_panel<Isa, Simd, typename Isa::Int8>(call, panel, is_last);
  } else if constexpr (std::is_same_v<Block, Int4Block>) {
    multiply_panel<Isa, Simd, typename Isa::Int4>(call, panel, is_last);
  } else {
    multiply_apart<Isa, Simd, Block>(call, panel);
  }
}

template <class Isa, class Simd>
void linear_panels(const LinearCall& call, int64_t first, int64_t end) {
  with_block(call.bits, [&](auto type) {
    for (int64_t panel = first; panel < end; ++panel) {
      multiply_blocks<Isa, Simd, typename decltype(type)::Block>(call, panel, panel == end - 1);
    }
  });
}

}  // namespace
}  // namespace hearth
