// The common part of products with instructions that multiply whole tiles.
#pragma once

#include <cstring>

#include "linear.h"

namespace hearth {
namespace {

// Rows that are multiplied by a panel while it is in the cache.
template <class Block>
constexpr int kBlockRows = std::is_same_v<Block, BFloat16Block> ? 256 : 128;

// The type of tiles that blocks of weights are multiplied by.
template <class Block>
using TileOf = std::conditional_t<std::is_same_v<Block, BFloat16Block>, PairTile, ActivationTile>;

// Multiplies `count` rows of tiles by one panel, into results. `next` is the next panel, or null.
template <class Block>
using MultiplyRows = void (*)(const Block* blocks, const Block* next, int64_t num_groups,
                              const TileOf<Block>* rows, int64_t count, float (*results)[kPanel]);

template <class Simd, class Block, MultiplyRows<Block> kMultiply>
void tile_panels(const LinearCall& call, int64_t first_panel, int64_t end_panel) {
  alignas(kCacheLine) float results[2][kBlockRows<Block>][kPanel];
  const int num_parts = call.is_gated ? 2 : 1;
  for (int64_t first = 0; first < call.num_rows; first += kBlockRows<Block>) {
    const int64_t rest = call.num_rows - first;
    const int64_t count = rest < kBlockRows<Block> ? rest : kBlockRows<Block>;
    const auto* rows =
        static_cast<const TileOf<Block>*>(call.tiles) + first / kTileRows * call.num_groups;
    for (int64_t panel = first_panel; panel < end_panel; ++panel) {
      for (int part = 0; part < num_parts; ++part) {
        const auto* blocks = panel_blocks<Block>(call, panel, part);
        const bool is_last = panel == end_panel - 1;
        const Block* next = is_last ? nullptr : blocks + call.num_groups;
        kMultiply(blocks, next, call.num_groups, rows, count, results[part]);
      }
      for (int64_t row = 0; row < count; ++row) {
        finish_row<Simd>(call, first + row, panel, results[0][row], results[1][row]);
      }
    }
  }
}

// Missing rows of the last tile stay as they are: their products are never read.
inline void fill_byte_tiles(const void* rows, int64_t num_rows, int64_t num_groups, void* tiles) {
  auto* const to = static_cast<ActivationTile*>(tiles);
  for (int64_t row = 0; row < num_rows; ++row) {
    const auto* const from = static_cast<const ActivationGroup*>(rows) + row * num_groups;
    for (int64_t group = 0; group < num_groups; ++group) {
      std::memcpy(to[group].values[row], from[group].values, sizeof from[group].values);
      to[group].scales[row] = from[group].scale;
    }
  }
}

}  // namespace
}  // namespace hearth
