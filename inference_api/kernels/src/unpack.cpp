#include "unpack.h"

#include "codes.h"
#include "half.h"
#include "isa_portable.h"
#include "unpacked.h"

namespace hearth {
namespace {

void unpack_block(const Float32Block& block, int64_t lane, float* weights) {
  for (int i = 0; i < kGroup; ++i) {
    weights[i] = block.values[i][lane];
  }
}

void unpack_block(const BFloat16Block& block, int64_t lane, float* weights) {
  for (int i = 0; i < kGroup; ++i) {
    weights[i] = bfloat16_to_float(block.pairs[i / kPair][lane][place_in_pair(i)]);
  }
}

void unpack_block(const Int8Block& block, int64_t lane, float* weights) {
  const float scale = half_to_float(block.scales[lane]);
  for (int i = 0; i < kGroup; ++i) {
    const int value = block.values[i / kQuad][lane][i % kQuad] - kInt8Offset;
    weights[i] = static_cast<float>(value) * scale;
  }
}

void unpack_block(const Int4Block& block, int64_t lane, float* weights) {
  const float scale = half_to_float(block.scales[lane]);
  for (int i = 0; i < kGroup; ++i) {
    const int quad = i / kQuad;
    const int pair = block.pairs[quad / 2][lane][i % kQuad];
    const int value = (quad % 2 == 0 ? pair & 0x0f : pair >> 4) - kInt4Offset;
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
    for (int j = 0; j < kQuad; ++j) {
      const int value = static_cast<int>(quad >> (8 * j) & 0xff) - Block::kOffset;
      weights[i + j] = static_cast<float>(value) * scale;
    }
  }
}

// Blocks that are taken apart: the scales of the whole panel are.
template <class Block>
void unpack_block(const Block& block, int64_t lane, float* weights) {
  constexpr int kInputs = Block::kInputs / Block::kScales;  // of a group
  decltype(UnpackedOf<Block>::floats) floats;
  unpack_scales<Portable>(block, 0, floats);
  for (int i = 0; i < Block::kInputs; i += kQuad) {
    const int group = i / kInputs;
    const auto quad = bytes_of<PortableBytes<1>, Block>(
        values_of(block, group), i % kInputs / kQuad, static_cast<int>(lane));
    for (int j = 0; j < kQuad; ++j) {
      const int value = quad.lanes[0][j] - Block::kOffset;
      weights[i + j] = static_cast<float>(value) * floats.scales[group][lane];
      if (Block::kHasMinima) {
        weights[i + j] -= floats.minima[group][lane];
      }
    }
  }
}

template <class Block>
void unpack_row(const void* packed, int64_t num_groups, int64_t output, float* weights) {
  const int64_t num_blocks = num_groups * kGroup / Block::kInputs;
  const auto* blocks = static_cast<const Block*>(packed) + output / kPanel * num_blocks;
  for (int64_t index = 0; index < num_blocks; ++index) {
    float* const to = weights + index * Block::kInputs;
    if constexpr (kHasCodes<Block>) {
      unpack_codes(blocks[index], static_cast<int>(output % kPanel), to);
    } else {
      unpack_block(blocks[index], output % kPanel, to);
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
