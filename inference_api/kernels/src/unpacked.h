// Blocks of few bits: how products read them, and how they are unpacked once for many rows.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "half.h"
#include "layout.h"

namespace hearth {
namespace {

constexpr int kLowBits = 4;
constexpr int kLowMask = 0xf;

template <class Packed, class = void>
constexpr bool kHasTable = false;
template <class Packed>
constexpr bool kHasTable<Packed, std::void_t<decltype(Packed::kTable)>> = true;

// Returns a quad of a group's values. Their low bits are in `crumbs` (two) or `pairs` (four), other
// bits in `high`. Whole bytes are returned as they are.
template <class Isa, class Packed, class Values>
typename Isa::Bytes bytes_of(const Values& values, int quad, int vector) {
  if constexpr (std::is_same_v<Packed, Int8Block>) {
    return Isa::load(values.values[quad], vector);
  } else if constexpr (Packed::kBits < kLowBits) {
    const auto low = Isa::field(Isa::load(values.crumbs, vector), quad * 2, 0x3);
    if constexpr (Packed::kBits == 2) {
      return low;
    } else {
      const auto both = Isa::load(values.high, vector);
      const auto high = values.is_second ? Isa::field(both, kLowBits, kLowMask) : both;
      return Isa::joined(low, Isa::field(high, quad - 2, 0x4));
    }
  } else {
    const auto pairs = Isa::load(values.pairs[quad / 2], vector);
    const auto low = Isa::field(pairs, quad % 2 * kLowBits, kLowMask);
    constexpr int kHighBits = Packed::kBits - kLowBits;
    if constexpr (kHasTable<Packed>) {
      return Isa::looked_up(low, Packed::kTable);
    } else if constexpr (kHighBits == 0) {
      return low;
    } else {
      constexpr int kMask = ((1 << kHighBits) - 1) << kLowBits;
      const auto high = Isa::load(values.high, vector);
      return Isa::joined(low, Isa::field(high, quad * kHighBits - kLowBits, kMask));
    }
  }
}

// Returns the values of a group of a block.
template <class Block>
const auto& values_of(const Block& block, int group) {
  if constexpr (Block::kScales == 1) {
    return block;
  } else {
    return block.groups[group];
  }
}

inline Q3KBlock::Values values_of(const Q3KBlock& block, int group) {
  const auto& both = block.groups[group / 2];
  return {both.crumbs[group % 2], both.high, group % 2 == 1};
}

template <class Isa>
void unpack_halves(const uint16_t (&halves)[kPanel], float (&floats)[kPanel]) {
  for (int lane = 0; lane < kPanel; lane += Isa::kLanes) {
    Isa::store(floats + lane, Isa::halves(halves + lane));
  }
}

// Multiplies lanes. The products of halves and integers of few bits are exact.
template <class Integer>
void multiply_lanes(const float (&units)[kPanel], const Integer (&integers)[kPanel],
                    float (&products)[kPanel]) {
  for (int lane = 0; lane < kPanel; ++lane) {
    products[lane] = units[lane] * static_cast<float>(integers[lane]);
  }
}

// The factors of groups' sums; and the minima to subtract from weights, if the form has them.
template <int kNumScales>
struct GroupFloats {
  float scales[kNumScales][kPanel];
  float minima[kNumScales][kPanel];
};

// Returns 2 to the power of `exponent` - 128, which is subnormal for the first two exponents. It is
// a product of two normal powers, without a test, so that compilers can vectorise it.
inline float power_of_two(uint8_t exponent) {
  const uint32_t half = exponent / 2u;
  return float_from_bits((half + 63) << 23) * float_from_bits((exponent - half + 63) << 23);
}

// Returns a vector of scales of a block that has one scale for each output.
template <class Isa, class Block>
typename Isa::Floats scales_of(const Block& block, int vector) {
  return Isa::halves(block.scales + vector * Isa::kLanes);
}

template <class Isa>
typename Isa::Floats scales_of(const MxFp4Block& block, int vector) {
  float powers[Isa::kLanes];
  for (int lane = 0; lane < Isa::kLanes; ++lane) {
    powers[lane] = power_of_two(block.exponents[vector * Isa::kLanes + lane]);
  }
  return Isa::load(powers);
}

template <class Isa>
void unpack_scales(const GroupScales& packed, GroupFloats<kSuperGroups>& to) {
  float scale_units[kPanel];
  float minimum_units[kPanel];
  unpack_halves<Isa>(packed.scale_units, scale_units);
  unpack_halves<Isa>(packed.minimum_units, minimum_units);
#pragma GCC unroll 8
  for (int group = 0; group < kSuperGroups; ++group) {
    uint8_t scales[kPanel];
    uint8_t minima[kPanel];
    for (int lane = 0; lane < kPanel; ++lane) {
      const int low = packed.low[group][lane];
      const int high = packed.high[group / 2][lane] >> (group % 2 * 4);
      scales[lane] = static_cast<uint8_t>((low & kLowMask) | (high & 0x3) << kLowBits);
      minima[lane] = static_cast<uint8_t>(low >> kLowBits | (high & 0xc) << 2);
    }
    multiply_lanes(scale_units, scales, to.scales[group]);
    multiply_lanes(minimum_units, minima, to.minima[group]);
  }
}

// Unpacks scales and minima. `block` is number `index` of the blocks that share `to`.
template <class Isa, class Block>
void unpack_scales(const Block& block, int index, GroupFloats<kSuperGroups>& to) {
  for (int vector = 0; vector < kPanel / Isa::kLanes; ++vector) {
    Isa::store(to.scales[index] + vector * Isa::kLanes, scales_of<Isa>(block, vector));
  }
  if constexpr (Block::kHasMinima) {
    unpack_halves<Isa>(block.minima, to.minima[index]);
  }
}

template <class Isa>
void unpack_scales(const Q4KBlock& block, int, GroupFloats<kSuperGroups>& to) {
  unpack_scales<Isa>(block.scales, to);
}

template <class Isa>
void unpack_scales(const Q5KBlock& block, int, GroupFloats<kSuperGroups>& to) {
  unpack_scales<Isa>(block.scales, to);
}

template <class Isa>
void unpack_scales(const Q2KBlock& block, int, GroupFloats<2 * kSuperGroups>& to) {
  float scale_units[kPanel];
  float minimum_units[kPanel];
  unpack_halves<Isa>(block.scale_units, scale_units);
  unpack_halves<Isa>(block.minimum_units, minimum_units);
  for (int group = 0; group < Q2KBlock::kScales; ++group) {
    uint8_t scales[kPanel];
    uint8_t minima[kPanel];
    for (int lane = 0; lane < kPanel; ++lane) {
      scales[lane] = block.scales[group][lane] & kLowMask;
      minima[lane] = static_cast<uint8_t>(block.scales[group][lane] >> kLowBits);
    }
    multiply_lanes(scale_units, scales, to.scales[group]);
    multiply_lanes(minimum_units, minima, to.minima[group]);
  }
}

constexpr int kMiddle = 32;  // offset of scales of six bits

template <class Isa>
void unpack_scales(const Q3KBlock& block, int, GroupFloats<2 * kSuperGroups>& to) {
  float units[kPanel];
  unpack_halves<Isa>(block.scale_units, units);
#pragma GCC unroll 16
  for (int group = 0; group < Q3KBlock::kScales; ++group) {
    int8_t scales[kPanel];
    for (int lane = 0; lane < kPanel; ++lane) {
      const int low = block.scales[group % 8][lane] >> (group / 8 * 4) & kLowMask;
      const int high = block.scales[8 + group % 4][lane] >> (group / 4 * 2) & 0x3;
      scales[lane] = static_cast<int8_t>((low | high << kLowBits) - kMiddle);
    }
    multiply_lanes(units, scales, to.scales[group]);
  }
}

template <class Isa>
void unpack_scales(const Iq4XsBlock& block, int, GroupFloats<kSuperGroups>& to) {
  float units[kPanel];
  unpack_halves<Isa>(block.scale_units, units);
#pragma GCC unroll 8
  for (int group = 0; group < kSuperGroups; ++group) {
    int8_t scales[kPanel];
    for (int lane = 0; lane < kPanel; ++lane) {
      const int low = block.low[group / 2][lane] >> (group % 2 * 4) & kLowMask;
      const int high = block.high[group / 4][lane] >> (group % 4 * 2) & 0x3;
      scales[lane] = static_cast<int8_t>((low | high << kLowBits) - kMiddle);
    }
    multiply_lanes(units, scales, to.scales[group]);
  }
}

template <class Isa>
void unpack_scales(const Q6KBlock& block, int, GroupFloats<2 * kSuperGroups>& to) {
  float units[kPanel];
  unpack_halves<Isa>(block.scale_units, units);
  for (int group = 0; group < Q6KBlock::kScales; ++group) {
    multiply_lanes(units, block.scales[group], to.scales[group]);
  }
}

template <class Isa, int kNumScales>
void unpack_scales(const NvFp4Block& block, int index, GroupFloats<kNumScales>& to) {
  for (int group = 0; group < NvFp4Block::kScales; ++group) {
    uint16_t scales[kPanel];
    for (int lane = 0; lane < kPanel; ++lane) {
      scales[lane] = static_cast<uint16_t>((block.scales[group][lane] & 0x7f) << 7);
    }
    unpack_halves<Isa>(scales, to.scales[index * NvFp4Block::kScales + group]);
  }
}

// Returns the highest bits of eight bytes, the first byte's as the lowest.
inline uint32_t highest_bits(const uint8_t* bytes) {
  uint64_t eight;
  std::memcpy(&eight, bytes, sizeof eight);
  return static_cast<uint32_t>((eight & 0x8080808080808080) * 0x0002040810204081 >> 56);
}

// Writes the factors of a panel's results. `first` is the panel's first block.
inline void unpack_factors(const NvFp4Block& first, float (&factors)[kPanel]) {
  constexpr int kShared = NvFp4Block::kFactorOutputs;
  for (int output = 0; output < kPanel; output += kShared) {
    uint32_t bits = 0;
    for (int scale = 0; scale < NvFp4Block::kScales; ++scale) {
      bits |= highest_bits(first.scales[scale] + output) << (scale * 8);
    }
    for (int i = 0; i < kShared; ++i) {
      factors[output + i] = float_from_bits(bits);
    }
  }
}

template <class Block>
constexpr bool kHasFactors = std::is_same_v<Block, NvFp4Block>;

// The values of a panel as bytes, for the inputs of a superblock in kNumScales groups. It takes at
// most 12 KiB, which stay in the first level cache for all rows.
template <int kNumScales>
struct alignas(kCacheLine) Unpacked {
  using Group = ActivationGroup;
  static constexpr int kInputs = kSuperInputs;
  static constexpr int kScales = kNumScales;
  struct Values {
    uint8_t quads[kInputs / kScales / kQuad][kPanel][kQuad];
  };
  Values groups[kScales];
  GroupFloats<kScales> floats;
};

// The number of blocks of `Packed` that make one Unpacked, and its type.
template <class Packed>
constexpr int kUnpackedBlocks = kSuperInputs / Packed::kInputs;
template <class Packed>
using UnpackedOf = Unpacked<Packed::kScales * kUnpackedBlocks<Packed>>;

// Unpacks `block`, which is number `index` of the blocks that make `to`.
template <class Isa, class Packed>
void unpack(const Packed& block, int index, UnpackedOf<Packed>& to) {
  constexpr int kGroupQuads = Packed::kInputs / Packed::kScales / kQuad;
  unpack_scales<Isa>(block, index, to.floats);
  for (int group = 0; group < Packed::kScales; ++group) {
    const auto& values = values_of(block, group);
    auto& quads = to.groups[index * Packed::kScales + group].quads;
#pragma GCC unroll 8
    for (int quad = 0; quad < kGroupQuads; ++quad) {
#pragma GCC unroll 8
      for (int vector = 0; vector < kPanel / Isa::kLanes; ++vector) {
        Isa::store(quads[quad], vector, bytes_of<Isa, Packed>(values, quad, vector));
      }
    }
  }
}

// How `Isa` multiplies by blocks as they are (Whole) or once they are unpacked (Apart): see
// linear.h.
template <class Isa, class Packed>
struct Whole : Isa::template Small<Packed::kBits, Packed::kOffset> {
  using Block = Packed;
  static constexpr bool kHasMinima = Packed::kHasMinima;

  template <class Values>
  static auto weights(const Values& values, int quad, int vector) {
    return Whole::taken(bytes_of<Isa, Packed>(values, quad, vector));
  }
};

template <class Isa, class Small, class To, bool kMinima>
struct Apart : Small {
  using Block = To;
  static constexpr bool kHasMinima = kMinima;

  static auto weights(const typename Block::Values& values, int quad, int vector) {
    return Apart::taken(Isa::load(values.quads[quad], vector));
  }
};

template <class Isa, class Packed>
using ApartOf = Apart<Isa, typename Isa::template Small<Packed::kBits, Packed::kOffset>,
                      UnpackedOf<Packed>, Packed::kHasMinima>;

// The scales and minima of a block, as `Isa` reads them.
template <class Isa, class Block>
struct Scales {
  explicit Scales(const Block& block) : block_(block) {
    if constexpr (Block::kScales > 1) {
      unpack_scales<Isa>(block, 0, floats_);
    }
  }

  typename Isa::Floats scales(int group, int vector) const {
    if constexpr (Block::kScales == 1) {
      return scales_of<Isa>(block_, vector);
    } else {
      return Isa::load(floats_.scales[group] + vector * Isa::kLanes);
    }
  }
  typename Isa::Floats minima(int group, int vector) const {
    if constexpr (Block::kScales == 1) {
      return Isa::halves(block_.minima + vector * Isa::kLanes);
    } else {
      return Isa::load(floats_.minima[group] + vector * Isa::kLanes);
    }
  }

 private:
  const Block& block_;
  GroupFloats<Block::kScales> floats_;
};

template <class Isa, int kScales>
struct Scales<Isa, Unpacked<kScales>> {
  explicit Scales(const Unpacked<kScales>& block) : floats_(block.floats) {}

  typename Isa::Floats scales(int group, int vector) const {
    return Isa::load(floats_.scales[group] + vector * Isa::kLanes);
  }
  typename Isa::Floats minima(int group, int vector) const {
    return Isa::load(floats_.minima[group] + vector * Isa::kLanes);
  }

 private:
  const GroupFloats<kScales>& floats_;
};

}  // namespace
}  // namespace hearth
