// The matrix product, for any instruction set. `Isa` brings registers, and formats Isa::Int8 and
// Isa::Int4 that say how a quad of weights is loaded, multiplied and summed.
//
// A row's result depends on that row alone: the sums of a group are integers, exact in any order,
// and groups are added in their order whatever the number of rows in the tile.
#pragma once

#include "kernels.h"

namespace hearth {
namespace {

template <class Block>
void prefetch(const Block& block) {
  const char* bytes = reinterpret_cast<const char*>(&block);
#pragma GCC unroll 32
  for (unsigned i = 0; i < sizeof(Block); i += kCacheLine) {
    __builtin_prefetch(bytes + i, 0, 2);  // to be read, into the second level cache
  }
}

// `kRows` rows of activations times one panel. The loops over rows and vectors must be unrolled,
// or the sums would not stay in registers; check the disassembly after any change. `next` is
// the panel to prefetch meanwhile, if there is one: a template parameter, because a test inside the
// loop costs GCC the registers.
template <class Isa, class Format, int kRows, bool kHasNext>
void multiply_tile(const typename Format::Block* blocks, const typename Format::Block* next,
                   int64_t num_groups, const ActivationGroup* rows, float (*out)[kPanel]) {
  constexpr int kPanelVectors = kPanel / Isa::kLanes;
  constexpr int kVectors = Isa::kVectors;  // of the panel that are worked on together
  typename Isa::Floats totals[kPanelVectors][kRows];
  for (auto& vector : totals) {
    for (auto& total : vector) {
      total = Isa::zero();
    }
  }
  for (int64_t group = 0; group < num_groups; ++group) {
    const typename Format::Block& block = blocks[group];
    const ActivationGroup* x = rows + group;
    if constexpr (kHasNext) {
      prefetch(next[group]);
    }
#pragma GCC unroll 1  // registers suffice for one turn only…
    for (int first = 0; first < kPanelVectors; first += kVectors) {
      if (kVectors < kPanelVectors) {  // …and not for keeping activations from turn to turn
        __atomic_signal_fence(__ATOMIC_SEQ_CST);
      }
      typename Isa::Sums sums[kVectors][kRows];
#pragma GCC unroll 8
      for (int row = 0; row < kRows; ++row) {
        const auto start = Format::start(x[row * num_groups].negative_sum);
#pragma GCC unroll 4
        for (int vector = 0; vector < kVectors; ++vector) {
          sums[vector][row] = start;
        }
      }
#pragma GCC unroll 8
      for (int quad = 0; quad < kQuads; ++quad) {
        typename Format::Weights weights[kVectors];
#pragma GCC unroll 4
        for (int vector = 0; vector < kVectors; ++vector) {
          weights[vector] = Format::weights(block, quad, first + vector);
        }
#pragma GCC unroll 8
        for (int row = 0; row < kRows; ++row) {
          const auto quads = Isa::broadcast(x[row * num_groups].values + quad * kQuad);
#pragma GCC unroll 4
          for (int vector = 0; vector < kVectors; ++vector) {
            sums[vector][row] = Format::dot(sums[vector][row], weights[vector], quads);
          }
        }
      }
#pragma GCC unroll 4
      for (int vector = 0; vector < kVectors; ++vector) {
        const auto scales = Isa::halves(block.scales + (first + vector) * Isa::kLanes);
#pragma GCC unroll 8
        for (int row = 0; row < kRows; ++row) {
          const ActivationGroup& activations = x[row * num_groups];
          auto& total = totals[first + vector][row];
          const auto sum = Format::finish(sums[vector][row], activations.negative_sum);
          total = Isa::multiply_add(sum, Isa::multiply(scales, activations.scale), total);
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

template <class Isa, class Format>
using Tile = void (*)(const typename Format::Block* blocks, const typename Format::Block* next,
                      int64_t num_groups, const ActivationGroup* rows, float (*out)[kPanel]);

template <class Isa, class Format, bool kHasNext>
Tile<Isa, Format> tile_for(int64_t num_rows) {
  static_assert(Isa::kMaxRows <= 6);
  constexpr int kMax = Isa::kMaxRows;
  constexpr Tile<Isa, Format> kTiles[] = {
      multiply_tile<Isa, Format, 1, kHasNext>,
      multiply_tile<Isa, Format, kMax < 2 ? kMax : 2, kHasNext>,
      multiply_tile<Isa, Format, kMax < 3 ? kMax : 3, kHasNext>,
      multiply_tile<Isa, Format, kMax < 4 ? kMax : 4, kHasNext>,
      multiply_tile<Isa, Format, kMax < 5 ? kMax : 5, kHasNext>,
      multiply_tile<Isa, Format, kMax < 6 ? kMax : 6, kHasNext>,
  };
  return kTiles[num_rows - 1];
}

inline void store_outputs(const float* tile, const LinearCall& call, int64_t row, int64_t first) {
  const int64_t rest = call.num_outputs - first;
  const int64_t count = rest < kPanel ? rest : kPanel;  // the last panel may be padded
  float* out = call.out + row * call.num_outputs + first;
  for (int64_t i = 0; i < count; ++i) {
    out[i] = call.bias == nullptr ? tile[i] : tile[i] + call.bias[first + i];
  }
}

// All rows times one panel, in tiles of nearly equal size. The first tile streams the panel from
// memory, the others find it in the cache: the last one may have the time to fetch the next panel.
// It has with half bytes; whole bytes come no faster for it, and their first tile waits longer.
template <class Isa, class Format>
void multiply_panel(const LinearCall& call, int64_t panel, bool is_last) {
  const auto* blocks =
      static_cast<const typename Format::Block*>(call.blocks) + panel * call.num_groups;
  constexpr bool kIsSmall = sizeof(typename Format::Block) < kPanel * kGroup;
  const int64_t num_tiles = (call.num_rows + Isa::kMaxRows - 1) / Isa::kMaxRows;
  alignas(kCacheLine) float out[Isa::kMaxRows][kPanel];
  for (int64_t tile = 0; tile < num_tiles; ++tile) {
    const int64_t first = call.num_rows * tile / num_tiles;
    const int64_t count = call.num_rows * (tile + 1) / num_tiles - first;
    const ActivationGroup* rows = call.rows + first * call.num_groups;
    const bool has_next = kIsSmall && !is_last && tile > 0 && tile == num_tiles - 1;
    const auto multiply =
        has_next ? tile_for<Isa, Format, true>(count) : tile_for<Isa, Format, false>(count);
    multiply(blocks, blocks + call.num_groups, call.num_groups, rows, out);
    for (int64_t row = 0; row < count; ++row) {
      store_outputs(out[row], call, first + row, panel * kPanel);
    }
  }
}

template <class Isa>
void linear_panels(const LinearCall& call, int64_t first, int64_t end) {
  for (int64_t panel = first; panel < end; ++panel) {
    const bool is_last = panel == end - 1;
    if (call.bits == Bits::kInt8) {
      multiply_panel<Isa, typename Isa::Int8>(call, panel, is_last);
    } else {
      multiply_panel<Isa, typename Isa::Int4>(call, panel, is_last);
    }
  }
}

}  // namespace
}  // namespace hearth
