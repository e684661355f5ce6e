// Unpacks blocks whose values are in tables: see layout_codes.h. All lanes of a panel do the same,
// in loops that compilers turn into vectors. Only places are looked up one by one.
#pragma once

#include <cstring>

#include "layout_codes.h"
#include "unpacked.h"

namespace hearth {

// Tables of places. In IQ3, a place has four values, in IQ2 eight; each is a byte with the offset
// of the form. In IQ1, a place has eight values of two bits each.
template <int kCount>
struct Eights {
  uint64_t of[kCount];
};
extern const uint32_t kIq3XxsQuads[256];
extern const uint32_t kIq3SQuads[512];
extern const Eights<256> kIq2XxsEights;
extern const Eights<512> kIq2XsEights;
extern const Eights<1024> kIq2SEights;
extern const uint16_t kIq1Words[2048];

namespace {

template <class Block, class = void>
constexpr bool kHasCodes = false;
template <class Block>
constexpr bool kHasCodes<Block, std::void_t<decltype(Block::kQuadsOfPlace)>> = true;

inline const uint32_t* words_of(const Iq3XxsBlock&) { return kIq3XxsQuads; }
inline const uint32_t* words_of(const Iq3SBlock&) { return kIq3SQuads; }
inline const uint64_t* words_of(const Iq2XxsBlock&) { return kIq2XxsEights.of; }
inline const uint64_t* words_of(const Iq2XsBlock&) { return kIq2XsEights.of; }
inline const uint64_t* words_of(const Iq2SBlock&) { return kIq2SEights.of; }
inline const uint16_t* words_of(const Iq1SBlock&) { return kIq1Words; }
inline const uint16_t* words_of(const Iq1MBlock&) { return kIq1Words; }

// Returns the half precision number that a block's scales are multiples of.
template <class Block>
uint32_t unit_of(const Block& block, int lane) {
  return block.scale_units[lane];
}

inline uint32_t unit_of(const Iq1MBlock& block, int lane) {
  uint32_t unit = 0;
  for (int i = 0; i < 4; ++i) {
    unit |= static_cast<uint32_t>(block.scales[i][lane] >> 12) << (4 * i);
  }
  return unit;
}

// Returns the scale of a group, in units.
template <class Block>
uint32_t scale_of(const Block& block, int group, int lane) {  // four bits
  return 2 * (static_cast<uint32_t>(block.scales[group / 2][lane]) >> (group % 2 * 4) & 0xf) + 1;
}

inline uint32_t scale_of(const Iq3XxsBlock& block, int group, int lane) {
  return 2 * (block.signs[group][lane] >> 28) + 1;
}

inline uint32_t scale_of(const Iq2XxsBlock& block, int group, int lane) {
  return 2 * (block.words[2 * group + 1][lane] >> 28) + 1;
}

inline uint32_t scale_of(const Iq1SBlock& block, int group, int lane) {
  return 2 * (static_cast<uint32_t>(block.high[group][lane]) >> 12 & 0x7) + 1;
}

inline uint32_t scale_of(const Iq1MBlock& block, int group, int lane) {
  return 2 * (static_cast<uint32_t>(block.scales[group / 4][lane]) >> (group % 4 * 3) & 0x7) + 1;
}

// Returns place `index` of a block.
inline uint32_t place_of(const Iq3XxsBlock& block, int index, int lane) {
  return block.places[index][lane];
}

inline uint32_t place_of(const Iq3SBlock& block, int index, int lane) {
  const uint32_t high = static_cast<uint32_t>(block.high[index / 8][lane]) >> (index % 8) & 0x1;
  return block.places[index][lane] | high << 8;
}

inline uint32_t place_of(const Iq2XxsBlock& block, int index, int lane) {
  return block.words[index / 4 * 2][lane] >> (index % 4 * 8) & 0xff;
}

inline uint32_t place_of(const Iq2XsBlock& block, int index, int lane) {
  return block.places[index][lane] & 0x1ff;
}

inline uint32_t place_of(const Iq2SBlock& block, int index, int lane) {
  const uint32_t high = static_cast<uint32_t>(block.high[index / 4][lane]) >> (index % 4 * 2) & 0x3;
  return block.places[index][lane] | high << 8;
}

inline uint32_t place_of(const Iq1SBlock& block, int index, int lane) {
  const uint32_t high = static_cast<uint32_t>(block.high[index / 4][lane]) >> (index % 4 * 3) & 0x7;
  return block.places[index][lane] | high << 8;
}

inline uint32_t place_of(const Iq1MBlock& block, int index, int lane) {
  const uint32_t high = static_cast<uint32_t>(block.high[index / 2][lane]) >> (index % 2 * 4) & 0x7;
  return block.places[index][lane] | high << 8;
}

// Returns eight signs from the first seven. An even number of the eight is set.
inline uint32_t eight_signs(uint32_t seven) {
  uint32_t odd = seven ^ seven >> 4;
  odd ^= odd >> 2;
  odd ^= odd >> 1;
  return seven | (odd & 0x1) << 7;
}

// Returns the signs of eight values.
template <class Block>
uint32_t signs_of(const Block& block, int eight, int lane) {
  return block.signs[eight][lane];
}

inline uint32_t signs_of(const Iq3XxsBlock& block, int eight, int lane) {
  return eight_signs(block.signs[eight / 4][lane] >> (eight % 4 * 7) & 0x7f);
}

inline uint32_t signs_of(const Iq2XxsBlock& block, int eight, int lane) {
  return eight_signs(block.words[eight / 4 * 2 + 1][lane] >> (eight % 4 * 7) & 0x7f);
}

inline uint32_t signs_of(const Iq2XsBlock& block, int eight, int lane) {
  return eight_signs(block.places[eight][lane] >> 9);
}

constexpr uint32_t kOnes = 0x01010101;  // a quad of ones

// Returns a quad, which includes its offset, with values negated where signs are set.
template <class Block>
uint32_t with_signs(uint32_t quad, uint32_t signs) {
  constexpr uint32_t kOther = 2 * Block::kOffset - 1;
  const uint32_t ones = (signs * 0x00204081) & kOnes;  // a sign in every byte
  return (quad ^ ones * kOther) + ones;
}

// Returns four fields of two bits as a quad.
inline uint32_t four_fields(uint32_t byte) {
  const uint32_t pairs = (byte | byte << 12) & 0x000f000f;
  return (pairs | pairs << 6) & (3 * kOnes);
}

// Returns quad `quad` of a block, with its offset. `word` is the table's entry for its place.
template <class Block>
uint32_t quad_of(const Block& block, uint64_t word, int quad, int lane) {
  const uint32_t signs = signs_of(block, quad / 2, lane) >> (quad % 2 * 4) & 0xf;
  const int place = quad % Block::kQuadsOfPlace;
  return with_signs<Block>(static_cast<uint32_t>(word >> (32 * place)), signs);
}

// Returns a quad of IQ1, in eighths.
inline uint32_t quad_of_eighths(uint64_t word, int quad, bool is_minus) {
  const uint32_t offset = is_minus ? kInt5Offset - 9 : kInt5Offset - 7;
  const auto byte = static_cast<uint32_t>(word >> (quad % 2 * 8)) & 0xff;
  return 8 * four_fields(byte) + offset * kOnes;
}

inline uint32_t quad_of(const Iq1SBlock& block, uint64_t word, int quad, int lane) {
  return quad_of_eighths(word, quad, (block.high[quad / kQuads][lane] & 0x8000) != 0);
}

inline uint32_t quad_of(const Iq1MBlock& block, uint64_t word, int quad, int lane) {
  const int eight = quad / 2;
  return quad_of_eighths(word, quad, (block.high[eight / 2][lane] >> (eight % 2 * 4) & 0x8) != 0);
}

// Looks up `places` in the table. `count` is a multiple of four.
template <class Word>
void look_up(const Word* table, const uint16_t* places, int count, Word* words) {
  for (int i = 0; i < count; i += 4) {
    uint64_t four;
    std::memcpy(&four, places + i, sizeof four);
    __asm__("" : "+r"(four));  // prevents vectors, which would take longer to assemble
    words[i] = table[four & 0xffff];
    words[i + 1] = table[four >> 16 & 0xffff];
    words[i + 2] = table[four >> 32 & 0xffff];
    words[i + 3] = table[four >> 48];
  }
}

// Unpacks a block. Not inlined, because compilers would then not turn its loops into vectors.
template <class Isa, class Block>
__attribute__((noinline)) void take_apart(const Block& block, UnpackedOf<Block>& to) {
  uint16_t halves[kPanel];
  float units[kPanel];
  for (int lane = 0; lane < kPanel; ++lane) {
    halves[lane] = static_cast<uint16_t>(unit_of(block, lane));
  }
  unpack_halves<Isa>(halves, units);
  for (int group = 0; group < Block::kScales; ++group) {
    for (int lane = 0; lane < kPanel; ++lane) {
      const auto scale = static_cast<int>(scale_of(block, group, lane));
      to.floats.scales[group][lane] = units[lane] * (static_cast<float>(scale) * Block::kUnit);
    }
  }
  using Word = std::remove_const_t<std::remove_pointer_t<decltype(words_of(block))>>;
  constexpr int kGroupPlaces = kQuads / Block::kQuadsOfPlace;
  constexpr int kOfGroup = Block::kInputs / Block::kScales / kQuad;  // quads with the same scale
  for (int group = 0; group < kSuperGroups; ++group) {
    uint16_t places[kGroupPlaces][kPanel];
    Word words[kGroupPlaces][kPanel];
    for (int i = 0; i < kGroupPlaces; ++i) {
      for (int lane = 0; lane < kPanel; ++lane) {
        places[i][lane] = static_cast<uint16_t>(place_of(block, group * kGroupPlaces + i, lane));
      }
    }
    look_up(words_of(block), places[0], kGroupPlaces * kPanel, words[0]);
#pragma GCC unroll 4
    for (int quad = 0; quad < kQuads; quad += 2) {
      const int first = group * kQuads + quad;
      uint32_t quads[2][kPanel];
      for (int lane = 0; lane < kPanel; ++lane) {
        quads[0][lane] = quad_of(block, words[quad / Block::kQuadsOfPlace][lane], first, lane);
        quads[1][lane] =
            quad_of(block, words[(quad + 1) / Block::kQuadsOfPlace][lane], first + 1, lane);
      }
      std::memcpy(&to.groups[first / kOfGroup].quads[first % kOfGroup], quads, sizeof quads);
    }
  }
}

}  // namespace
}  // namespace hearth
