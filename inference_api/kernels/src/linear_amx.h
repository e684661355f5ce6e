// Matrix products with AMX. A tile instruction multiplies 16 rows by 16 outputs over a group of
// inputs, sixteen times as much as a vector instruction.
//
// Quantised weights are multiplied in tiles if there are many rows. The remaining work decides the
// speed: vector instructions scale a group's sums and add them, in the same order as everywhere, so
// results have the bits of the other AVX-512 product.
//
// Weights in bfloat16 are multiplied in tiles even by one row, because tiles add products in an
// order of their own: within a group, those of the first inputs of pairs and those of the second;
// then both sums, to the total of the groups before.
#pragma once

#include <immintrin.h>

#include <cstring>

#include "isa_avx512.h"
#include "linear_tiles.h"

namespace hearth {
namespace {

constexpr int kTileOutputs = Avx512Vnni::kLanes;
constexpr int kHalves = kPanel / kTileOutputs;
constexpr int kSmallTileRows = 8;  // for the last rows, if most of a whole tile would be padding

// A group of half a panel, without its offset, in the order in which a tile is loaded.
struct alignas(kCacheLine) TileGroup {
  int8_t values[kQuads][kTileOutputs][kQuad];
  float scales[kTileOutputs];
};

// Groups that are unpacked at once, multiplied by all rows and forgotten. They stay in the first
// level cache; moving more of them in and out would take longer than the products.
constexpr int kTileGroups = 16;

// Unpacks half `half` of `num_groups` blocks of a panel.
template <class Block>
void unpack_groups(const Block* blocks, int num_groups, int half, TileGroup* groups) {
  const __m512i offset = _mm512_set1_epi8(static_cast<char>(Block::kOffset));
  for (int group = 0; group < num_groups; ++group) {
#pragma GCC unroll 8
    for (int quad = 0; quad < kQuads; ++quad) {
      const __m512i values = bytes_of<Avx512Vnni, Block>(blocks[group], quad, half);
      _mm512_store_si512(groups[group].values[quad], _mm512_sub_epi8(values, offset));
    }
    _mm512_store_ps(groups[group].scales, scales_of<Avx512Vnni>(blocks[group], half));
  }
}

// Tiles 0 to 2 have whole height, 4 to 6 small height: sums, the next group's sums, activations.
// Tile 3 has weights.
struct alignas(kCacheLine) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, kGroup, 64, 64, 64, kGroup};
  uint8_t rows[16] = {kTileRows,      kTileRows,      kTileRows,     kQuads,
                      kSmallTileRows, kSmallTileRows, kSmallTileRows};
};

using TileSums = int32_t[kTileRows][kTileOutputs];

// Starts the products of one group. The intrinsics require a literal as the number of a tile.
template <int kRows>
inline void multiply_group(const ActivationTile& rows, const TileGroup& group) {
  _tile_loadd(3, group.values, kTileOutputs * kQuad);
  if constexpr (kRows == kTileRows) {
    _tile_zero(0);
    _tile_loadd(2, rows.values, kGroup);
    _tile_dpbssd(0, 2, 3);
  } else {
    _tile_zero(4);
    _tile_loadd(6, rows.values, kGroup);
    _tile_dpbssd(4, 6, 3);
  }
}

template <int kRows>
inline void store_sums(TileSums sums) {
  constexpr auto kRowBytes = static_cast<int>(sizeof sums[0]);
  if constexpr (kRows == kTileRows) {
    _tile_stored(0, sums, kRowBytes);
  } else {
    _tile_stored(4, sums, kRowBytes);
  }
}

template <int kRows>
inline void add_scaled(const TileSums sums, const float* scales, const ActivationTile& rows,
                       __m512 (&totals)[kRows]) {
  const __m512 weight_scales = _mm512_load_ps(scales);
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row) {
    const __m512 sum = _mm512_cvtepi32_ps(_mm512_load_si512(sums[row]));
    const __m512 scale = _mm512_mul_ps(weight_scales, _mm512_set1_ps(rows.scales[row]));
    totals[row] = _mm512_fmadd_ps(sum, scale, totals[row]);
  }
}

// Fetches half a block, which is needed later, into the second level cache.
template <class Block>
__attribute__((always_inline)) inline void fetch(const Block& block, int half) {
  constexpr unsigned kHalfBlock = sizeof(Block) / kHalves;
  const char* bytes = reinterpret_cast<const char*>(&block) + half * kHalfBlock;
#pragma GCC unroll 16
  for (unsigned i = 0; i < kHalfBlock; i += kCacheLine) {
    __builtin_prefetch(bytes + i, 0, 2);
  }
}

// Adds a row of tiles times half a panel to `out`. While the tiles of one group are multiplied, the
// sums of the previous group are scaled, because tile instructions and their stores take long.
template <int kRows, class Block>
void multiply_groups(const TileGroup* groups, int num_groups, const ActivationTile* rows,
                     const Block* next, int half, float (*out)[kPanel]) {
  alignas(kCacheLine) TileSums sums;
  const int first = half * kTileOutputs;
  __m512 totals[kRows];
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row) {
    totals[row] = _mm512_loadu_ps(out[row] + first);
  }
  multiply_group<kRows>(rows[0], groups[0]);
  store_sums<kRows>(sums);
  for (int group = 1; group < num_groups; ++group) {
    multiply_group<kRows>(rows[group], groups[group]);
    if (next != nullptr) {
      fetch(next[group], half);
    }
    add_scaled<kRows>(sums, groups[group - 1].scales, rows[group - 1], totals);
    store_sums<kRows>(sums);
  }
  add_scaled<kRows>(sums, groups[num_groups - 1].scales, rows[num_groups - 1], totals);
#pragma GCC unroll 16
  for (int row = 0; row < kRows; ++row) {
    _mm512_storeu_ps(out[row] + first, totals[row]);
  }
}

// Multiplies `count` rows by one panel. The last tile of rows fetches the next panel.
template <class Block>
void multiply_rows(const Block* blocks, const Block* next, int64_t num_groups,
                   const ActivationTile* rows, int64_t count, float (*results)[kPanel]) {
  TileGroup groups[kTileGroups];
  std::memset(results, 0, static_cast<size_t>(num_tiles(count)) * kTileRows * sizeof results[0]);
  for (int half = 0; half < kHalves; ++half) {
    for (int64_t first = 0; first < num_groups; first += kTileGroups) {
      const int64_t rest = num_groups - first;
      const int some = rest < kTileGroups ? static_cast<int>(rest) : kTileGroups;
      unpack_groups(blocks + first, some, half, groups);
      for (int64_t row = 0; row < count; row += kTileRows) {
        const Block* fetched = next != nullptr && row + kTileRows >= count ? next + first : nullptr;
        const auto multiply = count - row > kSmallTileRows ? multiply_groups<kTileRows, Block>
                                                           : multiply_groups<kSmallTileRows, Block>;
        multiply(groups, some, rows + row / kTileRows * num_groups + first, fetched, half,
                 results + row);
      }
    }
  }
}

// Tiles of the products of pairs: 0 to 3 have sums, 4 and 5 activations, 6 and 7 weights.
struct alignas(kCacheLine) PairConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {64, 64, 64, 64, 64, 64, 64, 64};
  uint8_t rows[16] = {16, 16, 16, 16, 16, 16, 16, 16};
};

// The number of blocks that a panel is fetched ahead, if it is read only once.
constexpr int64_t kAheadBlocks = 4;

// Multiplies one or two rows of tiles, which are `num_groups` tiles apart, by a panel, and fetches
// lines with every group.
template <int kTiles>
void multiply_pairs(const BFloat16Block* blocks, Fetched fetched, int64_t num_groups,
                    const PairTile* rows, float (*out)[kPanel]) {
  constexpr int kRowBytes = sizeof out[0];
  constexpr int kPairBytes = sizeof blocks->pairs[0];
  _tile_zero(0);
  _tile_zero(1);
  _tile_zero(2);
  _tile_zero(3);
  for (int64_t group = 0; group < num_groups; ++group) {
    const auto& pairs = blocks[group].pairs;
    fetched.step<4>();
    _tile_loadd(4, rows[group].rows, sizeof(PairGroup));
    _tile_loadd(6, pairs[0], kPairBytes);
    _tile_dpbf16ps(0, 4, 6);
    _tile_loadd(7, pairs[0] + kTileOutputs, kPairBytes);
    _tile_dpbf16ps(1, 4, 7);
    if constexpr (kTiles == 2) {
      _tile_loadd(5, rows[num_groups + group].rows, sizeof(PairGroup));
      _tile_dpbf16ps(2, 5, 6);
      _tile_dpbf16ps(3, 5, 7);
    }
  }
  _tile_stored(0, out[0], kRowBytes);
  _tile_stored(1, out[0] + kTileOutputs, kRowBytes);
  if constexpr (kTiles == 2) {
    _tile_stored(2, out[kTileRows], kRowBytes);
    _tile_stored(3, out[kTileRows] + kTileOutputs, kRowBytes);
  }
}

// Multiplies `count` rows by one panel. Each turn fetches a share of the next panel, so that
// reading it overlaps with multiplying; a single turn fetches its own panel ahead.
inline void multiply_rows(const BFloat16Block* blocks, const BFloat16Block* next,
                          int64_t num_groups, const PairTile* rows, int64_t count,
                          float (*results)[kPanel]) {
  constexpr int64_t kRows = 2 * kTileRows;
  constexpr int64_t kLines = kGroupLines<BFloat16Block>;
  const int64_t turns = (count + kRows - 1) / kRows;
  const int64_t lines = turns > 1 && next == nullptr ? 0 : (kLines + turns - 1) / turns;
  const auto* later = reinterpret_cast<const char*>(turns > 1 ? next : blocks + kAheadBlocks);
  for (int64_t row = 0; row < count; row += kRows) {
    const auto multiply = count - row > kTileRows ? multiply_pairs<2> : multiply_pairs<1>;
    multiply(blocks, {later, lines}, num_groups, rows + row / kTileRows * num_groups,
             results + row);
    later += num_groups * lines * kCacheLine;
  }
}

inline void fill_pair_tiles(const void* rows, int64_t num_rows, int64_t num_groups, void* tiles) {
  auto* const to = static_cast<PairTile*>(tiles);
  for (int64_t row = 0; row < num_rows; ++row) {
    const auto* const from =
        reinterpret_cast<const PairGroup*>(static_cast<const FloatGroup*>(rows) + row * num_groups);
    for (int64_t group = 0; group < num_groups; ++group) {
      to[group].rows[row] = from[group];
    }
  }
}

inline void fill_any_tiles(Bits bits, const void* rows, int64_t num_rows, int64_t num_groups,
                           void* tiles) {
  const auto fill = bits == Bits::kBFloat16 ? fill_pair_tiles : fill_byte_tiles;
  fill(rows, num_rows, num_groups, tiles);
}

inline int64_t min_tile_rows(Bits bits) {
  if (bits == Bits::kBFloat16) {
    return 1;
  }
  return bits == Bits::kInt8 || bits == Bits::kInt4 ? 32 : INT64_MAX;  // from where on it is faster
}

inline void linear_panels_by_tiles(const LinearCall& call, int64_t first, int64_t end) {
  if (call.tiles == nullptr) {
    kAvx512Bf16.linear_panels(call, first, end);
    return;
  }
  if (call.bits == Bits::kBFloat16) {
    const PairConfig config;
    _tile_loadconfig(&config);
    tile_panels<Simd512, BFloat16Block, multiply_rows>(call, first, end);
    _tile_release();
    return;
  }
  const TileConfig config;
  _tile_loadconfig(&config);
  if (call.bits == Bits::kInt8) {
    tile_panels<Simd512, Int8Block, multiply_rows>(call, first, end);
  } else {
    tile_panels<Simd512, Int4Block, multiply_rows>(call, first, end);
  }
  _tile_release();
}

}  // namespace
}  // namespace hearth
