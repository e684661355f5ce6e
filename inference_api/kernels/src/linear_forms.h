// The matrix product with weights as GGUF files have them, which are unpacked first. Each
// instruction set with products of integers of its own has a unit for this, because compiling it
// takes longer than all other units of a variant.
#pragma once

#include "codes.h"
#include "linear.h"
#include "unpacked.h"

namespace hearth {
namespace {

constexpr int kApartRows = 128;  // rows that are multiplied by unpacked blocks: bounds the results

// Multiplies a panel's results by its factors, if it has any. `first` is its first block.
template <class Block>
void multiply_by_factors(const Block& first, int64_t count, float (*results)[kPanel]) {
  if constexpr (kHasFactors<Block>) {
    float factors[kPanel];
    unpack_factors(first, factors);
    for (int64_t row = 0; row < count; ++row) {
      for (int lane = 0; lane < kPanel; ++lane) {
        results[row][lane] *= factors[lane];
      }
    }
  }
}

// Multiplies all rows by one panel of blocks of few bits. A single tile uses blocks as they are, if
// they have no codes. For several tiles they are unpacked, and the first tile fetches the next
// ones.
template <class Isa, class Simd, class Packed>
void multiply_apart(const LinearCall& call, int64_t panel) {
  using Format = ApartOf<Isa, Packed>;
  using Block = typename Format::Block;
  constexpr int kMax = max_rows<Isa, Format>();
  constexpr int kMin = kHasCodes<Packed> ? 1 : (kMax + 1) / 2;  // rows of a tile of unpacked blocks
  constexpr int64_t kLines = kGroupLines<Packed>;
  const int num_parts = call.is_gated ? 2 : 1;
  Block unpacked;
  alignas(kCacheLine) float results[2][kApartRows][kPanel];
  for (int64_t first = 0; first < call.num_rows; first += kApartRows) {
    const int64_t rest = call.num_rows - first;
    const int64_t count = rest < kApartRows ? rest : kApartRows;
    const int64_t num_tiles = (count + kMax - 1) / kMax;
    const auto* rows = static_cast<const ActivationGroup*>(call.rows) + first * call.num_groups;
    fetch_places<ActivationGroup>(call, first, count, panel);
    for (int part = 0; part < num_parts; ++part) {
      std::memset(results[part], 0, static_cast<size_t>(count) * sizeof results[part][0]);
      const auto* blocks = panel_blocks<Packed>(call, panel, part);
      if constexpr (!kHasCodes<Packed>) {
        if (num_tiles == 1) {
          const auto multiply = tile_for<Isa, Whole<Isa, Packed>, 1, kMax>(count);
          multiply(blocks, {reinterpret_cast<const char*>(blocks) + kAheadBytes<Format>, kLines},
                   {rows, call.num_groups, call.num_groups}, results[part]);
          continue;
        }
      }
      for (int64_t group = 0; group < call.num_groups; group += kSuperGroups) {
        const int64_t groups_left = call.num_groups - group;
        const int64_t groups = groups_left < kSuperGroups ? groups_left : kSuperGroups;
        for (int index = 0; index * kBlockGroups<Packed> < groups; ++index) {
          if constexpr (kHasCodes<Packed>) {
            take_apart<Isa>(*blocks++, unpacked);
          } else {
            unpack<Isa>(*blocks++, index, unpacked);
          }
        }
        for (int64_t tile = 0; tile < num_tiles; ++tile) {
          const int64_t begin = count * tile / num_tiles;
          const int64_t size = count * (tile + 1) / num_tiles - begin;
          const auto multiply = tile_for<Isa, Format, kMin, kMax>(size);
          multiply(&unpacked, {reinterpret_cast<const char*>(blocks), tile == 0 ? kLines : 0},
                   {rows + begin * call.num_groups + group, groups, call.num_groups},
                   results[part] + begin);
        }
      }
    }
    for (int part = 0; part < num_parts; ++part) {
      multiply_by_factors(*panel_blocks<Packed>(call, panel, part), count, results[part]);
    }
    for (int64_t row = 0; row < count; ++row) {
      finish_row<Simd>(call, first + row, panel, results[0][row], results[1][row]);
    }
  }
}

// Whether only files have this form. Int4 blocks could be unpacked for several tiles, too, but to
// unpack them again takes no more time than to read unpacked ones.
template <class Block>
constexpr bool kIsOfFiles = std::is_same_v<typename Block::Group, ActivationGroup> &&
                            !std::is_same_v<Block, Int8Block> && !std::is_same_v<Block, Int4Block>;

template <class Isa, class Simd>
void form_panels(const LinearCall& call, int64_t first, int64_t end) {
  with_block(call.bits, [&](auto type) {
    using Block = typename decltype(type)::Block;
    if constexpr (kIsOfFiles<Block>) {
      for (int64_t panel = first; panel < end; ++panel) {
        multiply_apart<Isa, Simd, Block>(call, panel);
      }
    }
  });
}

}  // namespace
}  // namespace hearth
