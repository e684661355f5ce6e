// Packed forms in which one index of a table ("a place") gives several values: IQ1, IQ2 and IQ3 of
// llama.cpp's files. Blocks have the bytes of the file, interleaved over a panel's outputs. Values
// are unpacked before they are multiplied: see codes.h, and codes.cpp for the tables.
#pragma once

#include "layout.h"

namespace hearth {

// kQuadsOfPlace: quads that a place gives. kUnit: factor of scales, which are odd integers, besides
// the block's half precision number.
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

// Values from 4 to 62 and their signs. A word of `signs` has seven signs for each of four times
// eight inputs, and the scale in its highest bits.
struct Iq3XxsBlock : CodeForm<kSuperGroups, 8, kInt8Offset, 1, 4> {
  uint16_t scale_units[kPanel];  // IEEE half precision
  uint32_t signs[kSuperGroups][kPanel];
  uint8_t places[2 * kSuperEights][kPanel];
};

// Odd values from 1 to 15. Bit i of a byte of `high` is the ninth bit of a group's place i.
struct Iq3SBlock : CodeForm<kSuperGroups, 5, kInt5Offset, 1, 1> {
  uint16_t scale_units[kPanel];              // IEEE half precision
  uint8_t scales[kSuperGroups / 2][kPanel];  // each for two groups
  uint8_t high[kSuperGroups][kPanel];
  uint8_t signs[kSuperEights][kPanel];
  uint8_t places[2 * kSuperEights][kPanel];
};

// Values 8, 25 and 43. Words alternate: one has four places of eight values each, the next is like
// a word of Iq3XxsBlock's signs.
struct Iq2XxsBlock : CodeForm<kSuperGroups, 8, kInt8Offset, 2, 8> {
  uint16_t scale_units[kPanel];  // IEEE half precision
  uint32_t words[2 * kSuperGroups][kPanel];
};

// The same in groups of 16 inputs. A place has nine bits, and seven signs above them.
struct Iq2XsBlock : CodeForm<2 * kSuperGroups, 8, kInt8Offset, 2, 8> {
  uint16_t scale_units[kPanel];          // IEEE half precision
  uint8_t scales[kSuperGroups][kPanel];  // each for two groups
  uint16_t places[kSuperEights][kPanel];
};

// The same with all signs. Bits 2 i and 2 i + 1 of a byte of `high` are the high bits of place i.
struct Iq2SBlock : CodeForm<2 * kSuperGroups, 8, kInt8Offset, 2, 8> {
  uint16_t scale_units[kPanel];          // IEEE half precision
  uint8_t scales[kSuperGroups][kPanel];  // each for two groups
  uint8_t high[kSuperGroups][kPanel];
  uint8_t signs[kSuperEights][kPanel];
  uint8_t places[kSuperEights][kPanel];
};

// Values -1, 0 and 1; in a group, an eighth is added to all or subtracted from all. A half word of
// `high` has the high three bits of four places, three of the scale, and a bit for subtraction.
struct Iq1SBlock : CodeForm<kSuperGroups, 5, kInt5Offset, 2, 8> {
  uint16_t scale_units[kPanel];  // IEEE half precision
  uint16_t high[kSuperGroups][kPanel];
  uint8_t places[kSuperEights][kPanel];
};

// The same in groups of 16 inputs, with an eighth added or subtracted for each eight of them. Half
// a byte of `high` has this bit above the high three bits of a place. A half word of `scales` has
// four scales and, in its highest bits, four bits of the block's unit, the lowest first.
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
