// K-quants: how layout.h packs their numbers, and the formats by which products read them, for any
// instruction set.
#pragma once

#include "half.h"
#include "layout.h"

namespace hearth {
namespace {

constexpr int kHighBits = 2;  // of a scale or minimum of six bits
constexpr int kHighMask = 0x3;
constexpr int kLowBits = 4;
constexpr int kLowMask = 0xf;

inline int scale_of(const GroupScales& scales, int group, int64_t lane) {
  const int high = scales.high[group / 2][lane] >> (group % 2 * 2 * kHighBits);
  return (scales.low[group][lane] & kLowMask) | (high & kHighMask) << kLowBits;
}

inline int minimum_of(const GroupScales& scales, int group, int64_t lane) {
  const int high = scales.high[group / 2][lane] >> (group % 2 * 2 * kHighBits + kHighBits);
  return scales.low[group][lane] >> kLowBits | (high & kHighMask) << kLowBits;
}

template <class Values>
int low_bits_of(const Values& values, int64_t lane, int i) {
  const int quad = i / kQuad;
  return values.pairs[quad / 2][lane][i % kQuad] >> (quad % 2 * kLowBits) & kLowMask;
}

inline int value_of(const Q4KBlock::Values& values, int64_t lane, int i) {
  return low_bits_of(values, lane, i);
}

inline int value_of(const Q5KBlock::Values& values, int64_t lane, int i) {
  const int high = values.high[lane][i % kQuad] >> (i / kQuad) & 1;
  return low_bits_of(values, lane, i) | high << kLowBits;
}

inline int value_of(const Q6KBlock::Values& values, int64_t lane, int i) {
  const int high = values.high[lane][i % kQuad] >> (i / kQuad * kHighBits) & kHighMask;
  return (low_bits_of(values, lane, i) | high << kLowBits) - kQ6KOffset;
}

// What a group's sums are multiplied by, of formats with one group to a block.
template <class Isa, class Block>
struct Scales {
  static constexpr bool kHasMinima = false;

  explicit Scales(const Block& block) : halves_(block.scales) {}

  typename Isa::Floats scales(int, int vector) const {
    return Isa::halves(halves_ + vector * Isa::kLanes);
  }

 private:
  const uint16_t* halves_;
};

// The same of a superblock, and what is taken off its weights: exact products in float32.
template <class Isa>
struct SuperScales {
  static constexpr bool kHasMinima = true;

  explicit SuperScales(const GroupScales& packed) {
    float scale_units[kPanel];
    float minimum_units[kPanel];
    for (int lane = 0; lane < kPanel; lane += Isa::kLanes) {
      Isa::store(scale_units + lane, Isa::halves(packed.scale_units + lane));
      Isa::store(minimum_units + lane, Isa::halves(packed.minimum_units + lane));
    }
    for (int group = 0; group < kSuperGroups; ++group) {
      for (int lane = 0; lane < kPanel; ++lane) {
        const auto scale = static_cast<float>(scale_of(packed, group, lane));
        const auto minimum = static_cast<float>(minimum_of(packed, group, lane));
        scales_[group][lane] = scale_units[lane] * scale;
        minima_[group][lane] = minimum_units[lane] * minimum;
      }
    }
  }

  typename Isa::Floats scales(int group, int vector) const {
    return Isa::load(scales_[group] + vector * Isa::kLanes);
  }
  typename Isa::Floats minima(int group, int vector) const {
    return Isa::load(minima_[group] + vector * Isa::kLanes);
  }

 private:
  float scales_[kSuperGroups][kPanel];
  float minima_[kSuperGroups][kPanel];
};

template <class Isa>
struct Scales<Isa, Q4KBlock> : SuperScales<Isa> {
  explicit Scales(const Q4KBlock& block) : SuperScales<Isa>(block.scales) {}
};

template <class Isa>
struct Scales<Isa, Q5KBlock> : SuperScales<Isa> {
  explicit Scales(const Q5KBlock& block) : SuperScales<Isa>(block.scales) {}
};

template <class Isa>
struct Scales<Isa, Q6KBlock> {
  static constexpr bool kHasMinima = false;

  explicit Scales(const Q6KBlock& block) {
    float units[kPanel];
    for (int lane = 0; lane < kPanel; lane += Isa::kLanes) {
      Isa::store(units + lane, Isa::halves(block.scale_units + lane));
    }
    for (int group = 0; group < Q6KBlock::kScales; ++group) {
      for (int lane = 0; lane < kPanel; ++lane) {
        scales_[group][lane] = units[lane] * static_cast<float>(block.scales[group][lane]);
      }
    }
  }

  typename Isa::Floats scales(int group, int vector) const {
    return Isa::load(scales_[group] + vector * Isa::kLanes);
  }

 private:
  float scales_[Q6KBlock::kScales][kPanel];
};

// The values of a group of a block.
template <class Block>
const auto& values_of(const Block& block, int group) {
  if constexpr (Block::kScales == 1) {
    return block;
  } else {
    return block.groups[group];
  }
}

// Formats as `Isa` multiplies them: see linear.h.
template <class Isa, class Values>
typename Isa::Bytes low_bits(const Values& values, int quad, int vector) {
  return Isa::field(Isa::load(values.pairs[quad / 2], vector), quad % 2 * kLowBits, kLowMask);
}

template <class Isa>
struct Q4K : Isa::template Small<4, 0> {
  using Block = Q4KBlock;

  static auto weights(const Q4KBlock::Values& values, int quad, int vector) {
    return Isa::template Small<4, 0>::taken(low_bits<Isa>(values, quad, vector));
  }
};

template <class Isa>
struct Q5K : Isa::template Small<5, 0> {
  using Block = Q5KBlock;

  static auto weights(const Q5KBlock::Values& values, int quad, int vector) {
    const auto high = Isa::field(Isa::load(values.high, vector), quad - kLowBits, 1 << kLowBits);
    return Isa::template Small<5, 0>::taken(Isa::joined(low_bits<Isa>(values, quad, vector), high));
  }
};

template <class Isa>
struct Q6K : Isa::template Small<6, kQ6KOffset> {
  using Block = Q6KBlock;

  static auto weights(const Q6KBlock::Values& values, int quad, int vector) {
    const auto high = Isa::field(Isa::load(values.high, vector), quad * kHighBits - kLowBits,
                                 kHighMask << kLowBits);
    return Isa::template Small<6, kQ6KOffset>::taken(
        Isa::joined(low_bits<Isa>(values, quad, vector), high));
  }
};

}  // namespace
}  // namespace hearth
