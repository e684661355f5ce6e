#include "unpack.h"

#include <cstring>

#include "codes.h"
#include "half.h"
#include "unpacked.h"

namespace hearth {
namespace {

void unpack_block(const Float32Block& block, int output, float* weights) {
  for (int i = 0; i < kGroup; ++i) {
    weights[i] = block.values[i][output];
  }
}

void unpack_block(const BFloat16Block& block, int output, float* weights) {
  for (int i = 0; i < kGroup; ++i) {
    weights[i] = bfloat16_to_float(block.pairs[i / kPair][output][place_in_pair(i)]);
  }
}

template <class Block>
void write_quad(uint32_t quad, float scale, float* weights) {
  for (int i = 0; i < kQuad; ++i) {
    const int value = static_cast<int>(quad >> (8 * i) & 0xff) - Block::kOffset;
    weights[i] = static_cast<float>(value) * scale;
  }
}

// Blocks whose values are in tables.
template <class Block>
void unpack_codes(const Block& block, int lane, float* weights) {
  constexpr int kOfGroup = Block::kInputs / Block::kScales;
  const float unit = half_to_float(static_cast<uint16_t>(unit_of(block, lane))) * Block::kUnit;
  for (int i = 0; i < Block::kInputs; i += kQuad) {
    const uint32_t place = place_of(block, i / kQuad / Block::kQuadsOfPlace, lane);
    const uint32_t quad = quad_of(block, words_of(block)[place], i / kQuad, lane);
    const float scale = unit * static_cast<float>(scale_of(block, i / kOfGroup, lane));
    write_quad<Block>(quad, scale, weights + i);
  }
}

// The instruction set that unpacked.h requires, for a single output: a quad is a word.
struct OneOutput {
  using Floats = float;
  using Bytes = uint32_t;
  static constexpr int kLanes = 1;

  static float load(const float* values) { return *values; }
  static void store(float* out, float value) { *out = value; }
  static float halves(const uint16_t* values) { return half_to_float(*values); }

  static uint32_t load(const uint8_t (*quads)[kQuad], int output) {
    uint32_t word;
    std::memcpy(&word, quads[output], sizeof word);
    return word;
  }

  static uint32_t joined(uint32_t a, uint32_t b) { return a | b; }

  static uint32_t field(uint32_t bytes, int shift, int mask) {
    return (shift < 0 ? bytes << -shift : bytes >> shift) & static_cast<uint32_t>(mask) * kOnes;
  }

  static uint32_t looked_up(uint32_t places, const uint8_t (&table)[16]) {
    uint32_t values = 0;
    for (int shift = 0; shift < 32; shift += 8) {
      values |= static_cast<uint32_t>(table[places >> shift & kLowMask]) << shift;
    }
    return values;
  }
};

template <class Block>
void unpack_block(const Block& block, int output, float* weights) {
  constexpr int kInputs = Block::kInputs / Block::kScales;  // of a group
  const Scales<OneOutput, Block> scales(block);
  for (int i = 0; i < Block::kInputs; i += kQuad) {
    const int group = i / kInputs;
    const auto& values = values_of(block, group);
    const uint32_t quad = bytes_of<OneOutput, Block>(values, i % kInputs / kQuad, output);
    const float scale = scales.scales(group, output);
    write_quad<Block>(quad, scale, weights + i);
    if constexpr (Block::kHasMinima) {
      const float minimum = scales.minima(group, output);
      for (int j = 0; j < kQuad; ++j) {
        weights[i + j] -= minimum;
      }
    }
  }
}

template <class Block>
void unpack_row(const void* packed, int64_t num_groups, int64_t output, float* weights) {
  const int64_t num_blocks = num_groups * kGroup / Block::kInputs;
  const auto* blocks = static_cast<const Block*>(packed) + output / kPanel * num_blocks;
  for (int64_t index = 0; index < num_blocks; ++index) {
    const auto lane = static_cast<int>(output % kPanel);
    float* const to = weights + index * Block::kInputs;
    if constexpr (kHasCodes<Block>) {
      unpack_codes(blocks[index], lane, to);
    } else {
      unpack_block(blocks[index], lane, to);
    }
  }
  if constexpr (kHasFactors<Block>) {
    float factors[kPanel];
    unpack_factors(blocks[0], factors);
    for (int64_t i = 0; i < num_blocks * Block::kInputs; ++i) {
      weights[i] *= factors[output % kPanel];
    }
  }
}

}  // namespace

void unpack_row(Bits bits, const void* packed, int64_t num_groups, int64_t output, float* weights) {
  with_block(bits, [&](auto type) {
    unpack_row<typename decltype(type)::Block>(packed, num_groups, output, weights);
  });
}

}  // namespace hearth
