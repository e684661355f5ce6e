// Packed forms in which a place in a table says several values at once: IQ1, IQ2 and IQ3 of
// llama.cpp's files. Blocks have the bytes of the file, those of a panel's outputs side by side.
// Values are taken apart before they are multiplied: see codes.h, and codes.cpp for the tables.
#pragma once

#include "layout.h"

namespace hearth {

// kQuadsOfPlace: quads that a place says. kUnit: what scales, which are odd integers, are
// multiplied by besides a block's half.
template <int kNumScales, int kBitsOfValue, int kValueOffset, int kQuadsOf, int kUnitsInOne>
struct CodeForm {
  using Group = ActivationGroup;
  static constexpr int kInputs = kSuperInputs;
  static constexpr int kScales = kNumScales;
  static constexpr int kBits = kBitsOfValue;
  static constexpr int kOffset = kValueOffset;
  static constexpr bool kHasMinima = false;
  static constexpr int kQuadsOfPlace = kQuadsOf;
  static constexpr float kUnit = 1.0f / kUnitsInOne;
};

constexpr int kSuperEights = kSuperInputs / (2 * kQuad);

// Values of 4 to 62 and their signs. A word has seven signs of each of four times eight inputs,
// and the scale on top.
struct Iq3XxsBlock : CodeForm<kSuperGroups, 8, kInt8Offset, 1, 4> {
  uint16_t scale_units[kPanel];  // IEEE half precision
  uint32_t signs[kSuperGroups][kPanel];
  uint8_t places[2 * kSuperEights][kPanel];
};

// Odd values of 1 to 15. Bit i of a byte of `high` is the ninth of place i of a group.
struct Iq3SBlock : CodeForm<kSuperGroups, 5, kInt5Offset, 1, 1> {
  uint16_t scale_units[kPanel];              // IEEE half precision
  uint8_t scales[kSuperGroups / 2][kPanel];  // of two groups
  uint8_t high[kSuperGroups][kPanel];
  uint8_t signs[kSuperEights][kPanel];
  uint8_t places[2 * kSuperEights][kPanel];
};

// Values of 8, 25 and 43. Words by turns: four places of eight values each, and the same as in
// Iq3XxsBlock.
struct Iq2XxsBlock : CodeForm<kSuperGroups, 8, kInt8Offset, 2, 8> {
  uint16_t scale_units[kPanel];  // IEEE half precision
  uint32_t words[2 * kSuperGroups][kPanel];
};

// The same in groups of 16: places of nine bits, below seven signs.
struct Iq2XsBlock : CodeForm<2 * kSuperGroups, 8, kInt8Offset, 2, 8> {
  uint16_t scale_units[kPanel];          // IEEE half precision
  uint8_t scales[kSuperGroups][kPanel];  // of two groups
  uint16_t places[kSuperEights][kPanel];
};

// The same with all signs. Bits 2 i and 2 i + 1 of a byte of `high` are the upper ones of place i.
struct Iq2SBlock : CodeForm<2 * kSuperGroups, 8, kInt8Offset, 2, 8> {
  uint16_t scale_units[kPanel];          // IEEE half precision
  uint8_t scales[kSuperGroups][kPanel];  // of two groups
  uint8_t high[kSuperGroups][kPanel];
  uint8_t signs[kSuperEights][kPanel];
  uint8_t places[kSuperEights][kPanel];
};

// Values of -1, 0 and 1, all of a group plus or minus an eighth. A half word has the upper three
// bits of four places, three of the scale, and whether it is minus.
struct Iq1SBlock : CodeForm<kSuperGroups, 5, kInt5Offset, 2, 8> {
  uint16_t scale_units[kPanel];  // IEEE half precision
  uint16_t high[kSuperGroups][kPanel];
  uint8_t places[kSuperEights][kPanel];
};

// The same in groups of 16, plus or minus an eighth by eights: a byte of `high` has that, and the
// upper three bits of a place, for two of them. A half word of `scales` has four scales, and on top
// four bits of the block's half, the lowest first.
struct Iq1MBlock : CodeForm<2 * kSuperGroups, 5, kInt5Offset, 2, 8> {
  uint16_t scales[kSuperGroups / 2][kPanel];
  uint8_t high[kSuperEights / 2][kPanel];
  uint8_t places[kSuperEights][kPanel];
};

static_assert(sizeof(Iq3XxsBlock) == kPanel * 98 && sizeof(Iq3SBlock) == kPanel * 110);
static_assert(sizeof(Iq2XxsBlock) == kPanel * 66 && sizeof(Iq2XsBlock) == kPanel * 74);
static_assert(sizeof(Iq2SBlock) == kPanel * 82 && sizeof(Iq1SBlock) == kPanel * 50);
static_assert(sizeof(Iq1MBlock) == kPanel * 56);

}  // namespace hearth
