// The matrix product, for any instruction set. `Isa` provides registers, and Isa::Small says how a
// quad of bytes is multiplied and summed. Formats of quantised weights are in unpacked.h, others
// below.
//
// A row's result depends on that row alone. The sums of a group are integers, exact in any order,
// and groups are added in their order for any number of rows in a tile. Products of floats are
// added one by one, in the order of inputs. Products of bfloat16 are exact, so that every variant
// has the same bits, except for numbers below 2^-126, which vdpbf16ps takes for zero.
#pragma once

#include <type_traits>

#include "activation.h"
#include "kernels.h"
#include "quantise.h"
#include "unpacked.h"

namespace hearth {
namespace {

// The memory that a tile fetches while it multiplies: `lines` in every step of its loop.
struct Fetched {
  const char* bytes;
  int64_t lines;

  // Fetches the lines of a step, kAtOnce at a time. The next step repeats those that are too many.
  template <int kAtOnce>
  __attribute__((always_inline)) void step() {
    for (int64_t line = 0; line < lines; line += kAtOnce) {
#pragma GCC unroll 4
      for (int i = 0; i < kAtOnce; ++i) {  // to be read, into the second level cache
        __builtin_prefetch(bytes + (line + i) * kCacheLine, 0, 2);
      }
    }
    bytes += lines * kCacheLine;
  }
};

// Formats of floats. A step multiplies kInputs inputs by those of a group of activations.
template <class Isa>
struct Float32 {
  using Block = Float32Block;
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

// Widens weights, unless an instruction multiplies pairs.
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

// The type of a format's groups in rows that `prepare_row` wrote.
template <class Format>
using Given = std::conditional_t<std::is_same_v<typename Format::Block, BFloat16Block>,
                                 BFloat16Group, Group<Format>>;

// Groups of activations that a block is multiplied by.
template <class Block>
constexpr int kBlockGroups = Block::kInputs / kGroup;

// Bytes, cache lines and quads of a group of weights; and groups of weights for each group of
// activations.
template <class Block>
constexpr size_t kGroupBytes = sizeof(Block) / Block::kScales;
template <class Block>
constexpr int64_t kGroupLines = (kGroupBytes<Block> + kCacheLine - 1) / kCacheLine;
template <class Block>
constexpr int kGroupQuads = Block::kInputs / Block::kScales / kQuad;
template <class Block>
constexpr int kParts = kQuads / kGroupQuads<Block>;
static_assert(kParts<Int8Block> == 1 && kParts<UnpackedOf<Q6KBlock>> == 2);

// Returns minus the sum of the activations that a group of weights is multiplied by.
template <class Block>
int32_t negative_sum(const ActivationGroup& x, int part) {
  return kParts<Block> == 1 ? x.negative_sum : x.negative_half_sums[part];
}

// Returns the same times the activations' scale.
template <class Block>
float scaled_negative_sum(const ActivationGroup& x, int part) {
  return kParts<Block> == 1 ? x.scaled_negative_sum
                            : x.scale * static_cast<float>(negative_sum<Block>(x, part));
}

// The number of quads whose products a format adds at once.
template <class Format, class = void>
constexpr int kRun = 1;
template <class Format>
constexpr int kRun<Format, std::void_t<decltype(Format::kRun)>> = Format::kRun;

// Returns the most rows of a tile.
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

// Returns the number of a panel's vectors that a tile of `num_rows` rows handles together.
template <class Isa, class Format>
constexpr int tile_vectors(int num_rows) {
  if constexpr (kRun<Format> > 1) {
    return num_rows == 1 ? 1 : Isa::kVectorsOfRuns;
  } else {
    return num_rows == 1 ? Isa::kVectorsOfOneRow : Isa::kVectors;
  }
}

// Sums of products for vectors of a panel and each row.
template <class Isa, int kVectors, int kRows>
using GroupSums = typename Isa::Sums[kVectors][kRows];

// Multiplies a group of weights, from vector `first` on, by part `part` of activations `x`, whose
// rows are num_groups apart.
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

// Scales a vector of sums, and adds it to its totals.
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

// Groups of activations that a tile is multiplied by: `count` for each row, rows `stride` apart.
template <class Group>
struct Rows {
  const Group* first;
  int64_t count;
  int64_t stride;
};

// Adds `kRows` rows of activations times blocks of one panel to `out`, and fetches lines with every
// group of weights. The loops over rows and vectors must be unrolled, or sums would not stay in
// registers; check the disassembly after any change.
template <class Isa, class Format, int kRows>
void multiply_tile(const typename Format::Block* blocks, Fetched fetched,
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
      fetched.step<3>();
#pragma GCC unroll 1  // registers suffice for only one turn…
      for (int first = 0; first < kPanelVectors; first += kVectors) {
        if (kVectors < kPanelVectors) {  // …and not to keep activations between turns
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

// The same for weights that are not quantised. A step of fetching is a quad.
template <class Isa, class Format, int kRows>
void multiply_tile(const typename Format::Block* blocks, Fetched fetched,
                   const Rows<FloatGroup>& rows, float (*out)[kPanel]) {
  const int64_t num_groups = rows.stride;
  const auto* first_row = reinterpret_cast<const Given<Format>*>(rows.first);
  const auto* second_row = reinterpret_cast<const Given<Format>*>(rows.first + num_groups);
  const int64_t stride = second_row - first_row;
  constexpr int kPanelVectors = kPanel / Isa::kLanes;
  constexpr int kVectors = Isa::kFloatVectors;  // the panel's vectors that are handled together
  for (int first = 0; first < kPanelVectors; first += kVectors) {
    typename Isa::Floats totals[kVectors][kRows];
    for (auto& vector : totals) {
      for (auto& total : vector) {
        total = Isa::zero();
      }
    }
    for (int64_t group = 0; group < num_groups; ++group) {
      const typename Format::Block& block = blocks[group];
#pragma GCC unroll 1
      for (int quad = 0; quad < kQuads; ++quad) {
        if (first == 0) {
          fetched.step<4>();
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
            const auto activations = Format::activations(first_row[row * stride + group], input);
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
using Tile = void (*)(const typename Format::Block* blocks, Fetched fetched,
                      const Rows<Group<Format>>& rows, float (*out)[kPanel]);

// Returns the tile for `num_rows` rows, which is from kRows to kMax.
template <class Isa, class Format, int kRows, int kMax>
Tile<Format> tile_for(int64_t num_rows) {
  if constexpr (kRows < kMax) {
    if (num_rows > kRows) {
      return tile_for<Isa, Format, kRows + 1, kMax>(num_rows);
    }
  }
  return multiply_tile<Isa, Format, kRows>;
}

// Returns the blocks of a panel. Part 1 is the panel that `panel` gates.
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

// Returns the row for the next product, in which a panel's results become a group.
inline char* activated_row(const LinearCall& call, int64_t row) {
  return static_cast<char*>(call.activated) + row * num_panels(call) * group_bytes(call.bits);
}

// Returns the place at which a panel's results for a row are added or stored.
inline float* place_in_out(const LinearCall& call, int64_t row, int64_t panel) {
  const int64_t place = call.places == nullptr ? row : call.places[row];
  return call.out + place * call.out_stride + panel * kPanel;
}

// Fetches the memory that a panel's results will be written to, while they are computed: a line is
// read before it is written, and waiting for it would hold up the next tile. Inlined, because a
// compiler takes a function that only fetches for one without effect, and leaves it out.
template <class Given>
__attribute__((always_inline)) inline void fetch_places(const LinearCall& call, int64_t first_row,
                                                        int64_t count, int64_t panel) {
  const bool is_kept = call.finish == Finish::kActivate;
  const size_t size = is_kept ? sizeof(Given) : kPanel * sizeof(float);
  for (int64_t row = first_row; row < first_row + count; ++row) {
    const char* place = is_kept ? activated_row(call, row) + panel * static_cast<int64_t>(size)
                                : reinterpret_cast<const char*>(place_in_out(call, row, panel));
    __builtin_prefetch(place, 1);
    __builtin_prefetch(place + size - 1, 1);
  }
}

// Stores, adds or activates a panel's results for a row. The last panel may be padded.
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
    prepare_group(call.bits, result, activated_row(call, row), panel);
    return;
  }
  const int64_t first = panel * kPanel;
  const int64_t rest = call.num_outputs - first;
  const int64_t count = rest < kPanel ? rest : kPanel;
  const float factor = call.shares == nullptr ? call.factor : call.factor * call.shares[row];
  float* out = place_in_out(call, row, panel);
  const bool is_added = call.finish == Finish::kAdd;
  if (count == kPanel) {  // a loop of constant length
    store_results(result, kPanel, factor, is_added, out);
  } else {
    store_results(result, count, factor, is_added, out);
  }
}

// The distance at which a single tile fetches its own panel ahead, which is earlier than the
// processor would, since that stops at every page. If a panel has several tiles, the first of them
// share the fetching of the next panel, so that reading it overlaps with multiplying.
template <class Format>
constexpr int kAheadBytes = std::is_same_v<Group<Format>, FloatGroup> ? 8192 : 2304;

// Multiplies all rows by one panel, in tiles of nearly equal size.
template <class Isa, class Simd, class Format>
void multiply_panel(const LinearCall& call, int64_t panel, bool is_last) {
  using Block = typename Format::Block;
  constexpr int kMax = max_rows<Isa, Format>();
  constexpr int64_t kSteps = std::is_same_v<Group<Format>, FloatGroup> ? kQuads : 1;
  const int num_parts = call.is_gated ? 2 : 1;
  const int64_t num_tiles = (call.num_rows + kMax - 1) / kMax;
  const int64_t shares = num_tiles < 2 ? 1 : num_tiles < 4 ? 2 : 4;
  const int64_t lines = (kGroupLines<Block> + shares - 1) / shares;
  const int64_t share_bytes = call.num_groups * kParts<Block> * lines * kCacheLine;
  alignas(kCacheLine) float results[2][kMax][kPanel];
  for (int64_t tile = 0; tile < num_tiles; ++tile) {
    const int64_t first = call.num_rows * tile / num_tiles;
    const int64_t count = call.num_rows * (tile + 1) / num_tiles - first;
    const auto* rows = static_cast<const Group<Format>*>(call.rows) + first * call.num_groups;
    const bool is_single = num_tiles == 1;
    const bool fetches = is_single || (tile < shares && !is_last);
    const auto multiply = tile_for<Isa, Format, 1, kMax>(count);
    fetch_places<Given<Format>>(call, first, count, panel);
    std::memset(results, 0, sizeof results);
    for (int part = 0; part < num_parts; ++part) {
      const auto* blocks = panel_blocks<Block>(call, panel, part);
      const Block* later = is_single ? blocks : blocks + call.num_groups / kBlockGroups<Block>;
      const int64_t offset = is_single ? kAheadBytes<Format> : tile * share_bytes;
      multiply(blocks,
               {reinterpret_cast<const char*>(later) + offset, fetches ? lines / kSteps : 0},
               {rows, call.num_groups, call.num_groups}, results[part]);
    }
    for (int64_t row = 0; row < count; ++row) {
      finish_row<Simd>(call, first + row, panel, results[0][row], results[1][row]);
    }
  }
}

template <class Isa, class Simd, class Format>
void multiply_panels(const LinearCall& call, int64_t first, int64_t end) {
  for (int64_t panel = first; panel < end; ++panel) {
    multiply_panel<Isa, Simd, Format>(call, panel, panel == end - 1);
  }
}

// Multiplies panels of weights in any form. `kForms` does so for forms that only files have.
template <class Isa, class Simd, const LinearPanels* kForms>
void linear_panels(const LinearCall& call, int64_t first, int64_t end) {
  switch (call.bits) {
    case Bits::kFloat32:
      multiply_panels<Isa, Simd, Float32<Isa>>(call, first, end);
      break;
    case Bits::kBFloat16:
      multiply_panels<Isa, Simd, BFloat16<Isa>>(call, first, end);
      break;
    case Bits::kInt8:
      multiply_panels<Isa, Simd, Whole<Isa, Int8Block>>(call, first, end);
      break;
    case Bits::kInt4:
      multiply_panels<Isa, Simd, Whole<Isa, Int4Block>>(call, first, end);
      break;
    default:
      (*kForms)(call, first, end);
  }
}

}  // namespace
}  // namespace hearth
