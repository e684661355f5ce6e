// The packed forms of weights and activations, shared by all variants. Only types and constants:
// kernels.h says why there is no code here.
//
// A weight matrix [outputs, inputs] is cut into panels of kPanel outputs, and a panel into groups
// of kGroup inputs. A block is one group of one panel: the values, and one scale per output. The
// blocks of a panel follow each other, so a panel is one stream of whole cache lines. It is read
// once for as many rows of activations as the registers hold.
//
// Four neighbouring bytes ("a quad") of an output are adjacent, because the instructions that
// matter multiply four bytes and add the products. A quad of 16 outputs is then one 512-bit
// register, a quad of 8 outputs one 256-bit register, and it is multiplied by one broadcast quad of
// activations. Two bfloat16 weights ("a pair") are adjacent likewise, the second input's first,
// because instructions begin with the product of the second. Float32 weights are multiplied one by
// one: the outputs of an input are adjacent.
#pragma once

#include <cstdint>

namespace hearth {

constexpr int kGroup = 32;       // inputs that share a scale
constexpr int kPanel = 32;       // outputs that are packed together
constexpr int kPageTokens = 32;  // positions in a page, which attention handles as a block
constexpr int kQuad = 4;         // bytes of inputs that one instruction multiplies and adds up
constexpr int kQuads = kGroup / kQuad;
constexpr int kPair = 2;  // inputs in bfloat16 that one instruction multiplies and adds up

// Values are stored with an offset, because one factor of the instructions is unsigned.
constexpr int kInt8Offset = 128;
constexpr int kInt8Max = 127;  // -128 is not used: 2 * 127 * 127 still fits into 16 bits
constexpr int kInt4Offset = 8;
constexpr int kInt4Max = 7;
constexpr int kInt5Offset = 16;
constexpr int kQ6KOffset = 32;

struct ActivationGroup;
struct FloatGroup;

// `Group`: the form of activations that weights are multiplied by. A block has kInputs inputs, in
// kScales groups. Its values have kBits bits and kOffset, see unpacked.h. With kTable, blocks have
// indices of four bits, and the table has the values, offset included.
struct Int8Block {
  using Group = ActivationGroup;
  static constexpr int kInputs = kGroup;
  static constexpr int kScales = 1;
  static constexpr int kBits = 8;
  static constexpr int kOffset = kInt8Offset;
  static constexpr bool kHasMinima = false;
  uint8_t values[kQuads][kPanel][kQuad];
  uint16_t scales[kPanel];  // IEEE half precision
};

// Quads 2 i and 2 i + 1 share the bytes of pairs[i]. The even quad has the low halves.
struct Int4Block {
  using Group = ActivationGroup;
  static constexpr int kInputs = kGroup;
  static constexpr int kScales = 1;
  static constexpr int kBits = 4;
  static constexpr int kOffset = kInt4Offset;
  static constexpr bool kHasMinima = false;
  uint8_t pairs[kQuads / 2][kPanel][kQuad];
  uint16_t scales[kPanel];  // IEEE half precision
};

// Q5_0 of llama.cpp's files. Bit i of a byte of `high` is the fifth bit of quad i.
struct Int5Block {
  using Group = ActivationGroup;
  static constexpr int kInputs = kGroup;
  static constexpr int kScales = 1;
  static constexpr int kBits = 5;
  static constexpr int kOffset = kInt5Offset;
  static constexpr bool kHasMinima = false;
  uint16_t scales[kPanel];                   // IEEE half precision
  uint8_t pairs[kQuads / 2][kPanel][kQuad];  // as in Int4Block
  uint8_t high[kPanel][kQuad];
};

// Q4_1 and Q5_1: a weight is scale * value - minimum. In files, minima have the opposite sign.
struct Q41Block {
  using Group = ActivationGroup;
  static constexpr int kInputs = kGroup;
  static constexpr int kScales = 1;
  static constexpr int kBits = 4;
  static constexpr int kOffset = 0;
  static constexpr bool kHasMinima = true;
  uint16_t scales[kPanel];                   // IEEE half precision
  uint16_t minima[kPanel];                   // IEEE half precision
  uint8_t pairs[kQuads / 2][kPanel][kQuad];  // as in Int4Block
};

struct Q51Block {
  using Group = ActivationGroup;
  static constexpr int kInputs = kGroup;
  static constexpr int kScales = 1;
  static constexpr int kBits = 5;
  static constexpr int kOffset = 0;
  static constexpr bool kHasMinima = true;
  uint16_t scales[kPanel];                   // IEEE half precision
  uint16_t minima[kPanel];                   // IEEE half precision
  uint8_t pairs[kQuads / 2][kPanel][kQuad];  // as in Int4Block
  uint8_t high[kPanel][kQuad];               // as in Int5Block
};

// IQ4_NL: values are spread unevenly from -127 to 113.
struct Iq4NlBlock {
  using Group = ActivationGroup;
  static constexpr int kInputs = kGroup;
  static constexpr int kScales = 1;
  static constexpr int kBits = 8;
  static constexpr int kOffset = kInt8Offset;
  static constexpr bool kHasMinima = false;
  static constexpr uint8_t kTable[16] = {1,   24,  45,  63,  79,  93,  106, 118,
                                         129, 141, 153, 166, 181, 197, 217, 241};
  uint16_t scales[kPanel];                   // IEEE half precision
  uint8_t pairs[kQuads / 2][kPanel][kQuad];  // as in Int4Block
};

// MXFP4: values are floats of four bits, doubled to be integers. A scale is a power of two.
struct MxFp4Block {
  using Group = ActivationGroup;
  static constexpr int kInputs = kGroup;
  static constexpr int kScales = 1;
  static constexpr int kBits = 5;
  static constexpr int kOffset = kInt5Offset;
  static constexpr bool kHasMinima = false;
  static constexpr uint8_t kTable[16] = {16, 17, 18, 19, 20, 22, 24, 28,
                                         16, 15, 14, 13, 12, 10, 8,  4};
  uint8_t exponents[kPanel];                 // exponents of two, plus 128
  uint8_t pairs[kQuads / 2][kPanel][kQuad];  // as in Int4Block
};
static_assert(sizeof(MxFp4Block) == kPanel * 17);

// NVFP4: MxFp4Block's values in groups of 16 inputs. A scale is an unsigned float of eight bits
// (E4M3). Shifted up by seven bits, it is a half precision number that is 2^8 times smaller. In a
// panel's first block, the sign bits of scales form floats that results are multiplied by, one for
// eight outputs: bit 8 s + i is in scale s of output i. A float includes the factor 2^8, and 1/2
// because values are doubled.
struct NvFp4Block {
  using Group = ActivationGroup;
  static constexpr int kInputs = 64;
  static constexpr int kScales = 4;
  static constexpr int kBits = MxFp4Block::kBits;
  static constexpr int kOffset = MxFp4Block::kOffset;
  static constexpr bool kHasMinima = false;
  static constexpr const auto& kTable = MxFp4Block::kTable;
  static constexpr int kFactorOutputs = 8;  // outputs that share a factor
  struct Values {
    uint8_t pairs[kQuads / 4][kPanel][kQuad];  // as in Int4Block
  };
  uint8_t scales[kScales][kPanel];
  Values groups[kScales];
};
static_assert(sizeof(NvFp4Block) == kPanel * 36 && sizeof(NvFp4Block) % 64 == 0);

// The K-quants of llama.cpp's files, with the same number of bytes: a weight is scale * value -
// minimum. The scale and the minimum of a group are small integers, each times a half precision
// number of its superblock, which has 256 inputs.
constexpr int kSuperInputs = 256;
constexpr int kSuperGroups = kSuperInputs / kGroup;

// Integers of six bits for each group. The low four bits of its scale and minimum share a byte; the
// high two bits of both share a byte with those of the next group.
struct GroupScales {
  uint16_t scale_units[kPanel];    // IEEE half precision
  uint16_t minimum_units[kPanel];  // IEEE half precision
  uint8_t low[kSuperGroups][kPanel];
  uint8_t high[kSuperGroups / 2][kPanel];
};

// Groups of 16 inputs. A byte of `scales` has a scale in its low half and a minimum in its high
// half; bits 2 i and 2 i + 1 of a byte of `crumbs` belong to quad i.
struct Q2KBlock {
  using Group = ActivationGroup;
  static constexpr int kInputs = kSuperInputs;
  static constexpr int kScales = 2 * kSuperGroups;
  static constexpr int kBits = 2;
  static constexpr int kOffset = 0;
  static constexpr bool kHasMinima = true;
  struct Values {
    uint8_t crumbs[kPanel][kQuad];
  };
  uint16_t scale_units[kPanel];    // IEEE half precision
  uint16_t minimum_units[kPanel];  // IEEE half precision
  uint8_t scales[kScales][kPanel];
  Values groups[kScales];
};

// Groups of 16 inputs, without minima. Bit i of a byte of `high` is the third bit of quad i, where
// quads are counted over two groups. Scales have six bits, minus 32: the low four of scales g and
// g + 8 are in scales[g], and the high two of scales g, g + 4, g + 8 and g + 12 in scales[8 + g].
struct Q3KBlock {
  using Group = ActivationGroup;
  static constexpr int kInputs = kSuperInputs;
  static constexpr int kScales = 2 * kSuperGroups;
  static constexpr int kBits = 3;
  static constexpr int kOffset = 4;
  static constexpr bool kHasMinima = false;
  struct TwoGroups {
    uint8_t crumbs[2][kPanel][kQuad];  // as in Q2KBlock
    uint8_t high[kPanel][kQuad];
  };
  struct Values {  // one of two groups
    const uint8_t (&crumbs)[kPanel][kQuad];
    const uint8_t (&high)[kPanel][kQuad];
    bool is_second;
  };
  uint16_t scale_units[kPanel];  // IEEE half precision
  uint8_t scales[kSuperGroups + kSuperGroups / 2][kPanel];
  TwoGroups groups[kSuperGroups];
};

struct Q4KBlock {
  using Group = ActivationGroup;
  static constexpr int kInputs = kSuperInputs;
  static constexpr int kScales = kSuperGroups;
  static constexpr int kBits = 4;
  static constexpr int kOffset = 0;
  static constexpr bool kHasMinima = true;
  struct Values {
    uint8_t pairs[kQuads / 2][kPanel][kQuad];  // as in Int4Block
  };
  GroupScales scales;
  Values groups[kSuperGroups];
};

// `high` is as in Int5Block.
struct Q5KBlock {
  using Group = ActivationGroup;
  static constexpr int kInputs = kSuperInputs;
  static constexpr int kScales = kSuperGroups;
  static constexpr int kBits = 5;
  static constexpr int kOffset = 0;
  static constexpr bool kHasMinima = true;
  struct Values {
    uint8_t pairs[kQuads / 2][kPanel][kQuad];  // as in Int4Block
    uint8_t high[kPanel][kQuad];
  };
  GroupScales scales;
  Values groups[kSuperGroups];
};

// Groups of 16 inputs, without minima: values have an offset. Bits 2 i and 2 i + 1 of a byte of
// `high` are the high bits of quad i.
struct Q6KBlock {
  using Group = ActivationGroup;
  static constexpr int kInputs = kSuperInputs;
  static constexpr int kScales = 2 * kSuperGroups;
  static constexpr int kBits = 6;
  static constexpr int kOffset = kQ6KOffset;
  static constexpr bool kHasMinima = false;
  struct Values {
    uint8_t pairs[kQuads / 4][kPanel][kQuad];  // as in Int4Block
    uint8_t high[kPanel][kQuad];
  };
  uint16_t scale_units[kPanel];  // IEEE half precision
  int8_t scales[kScales][kPanel];
  Values groups[kScales];
};

// IQ4_XS: Iq4NlBlock's values. Scales have six bits, minus 32: the low four share a byte with those
// of the next group, the high two with those of the next three.
struct Iq4XsBlock {
  using Group = ActivationGroup;
  static constexpr int kInputs = kSuperInputs;
  static constexpr int kScales = kSuperGroups;
  static constexpr int kBits = Iq4NlBlock::kBits;
  static constexpr int kOffset = Iq4NlBlock::kOffset;
  static constexpr bool kHasMinima = false;
  static constexpr const auto& kTable = Iq4NlBlock::kTable;
  using Values = Q4KBlock::Values;
  uint16_t scale_units[kPanel];  // IEEE half precision
  uint8_t low[kSuperGroups / 2][kPanel];
  uint8_t high[kSuperGroups / 4][kPanel];
  Values groups[kSuperGroups];
};
static_assert(sizeof(Iq4XsBlock) == kPanel * 136);
static_assert(sizeof(Q2KBlock) == kPanel * 84 && sizeof(Q3KBlock) == kPanel * 110);
static_assert(sizeof(Q4KBlock) == kPanel * 144 && sizeof(Q5KBlock) == kPanel * 176);
static_assert(sizeof(Q6KBlock) == kPanel * 210);

// Weights as they are, so that nothing is lost whatever their exponents.
struct Float32Block {
  using Group = FloatGroup;
  static constexpr int kInputs = kGroup;
  static constexpr int kScales = 1;
  float values[kGroup][kPanel];
};

constexpr int place_in_pair(int input) { return 1 - input % kPair; }

struct BFloat16Block {
  using Group = FloatGroup;
  static constexpr int kInputs = kGroup;
  static constexpr int kScales = 1;
  uint16_t pairs[kGroup / kPair][kPanel][kPair];
};

constexpr int kCacheLine = 64;
static_assert(sizeof(Int8Block) % kCacheLine == 0 && sizeof(Int4Block) % kCacheLine == 0);
static_assert(sizeof(Int5Block) % kCacheLine == 0 && sizeof(Iq4NlBlock) % kCacheLine == 0);
static_assert(sizeof(Q41Block) % kCacheLine == 0 && sizeof(Q51Block) % kCacheLine == 0);
static_assert(sizeof(Q2KBlock) % kCacheLine == 0 && sizeof(Q3KBlock) % kCacheLine == 0);
static_assert(sizeof(Q4KBlock) % kCacheLine == 0 && sizeof(Q5KBlock) % kCacheLine == 0);
static_assert(sizeof(Q6KBlock) % kCacheLine == 0 && sizeof(Iq4XsBlock) % kCacheLine == 0);
static_assert(sizeof(Float32Block) % kCacheLine == 0 && sizeof(BFloat16Block) % kCacheLine == 0);

// One group of one row of activations, for weights that are not quantised. For bfloat16 weights,
// activations are rounded to bfloat16.
struct FloatGroup {
  float values[kGroup];
};

// The same for bfloat16 weights, if an instruction multiplies pairs: ordered as in BFloat16Block. A
// row of these uses half of the memory for a row of FloatGroups.
struct PairGroup {
  uint16_t pairs[kGroup / kPair][kPair];
};

// The same for quantised weights: x[i] = scale * values[i].
struct ActivationGroup {
  int8_t values[kGroup];
  float scale;           // NaN if an activation of the group is not finite
  int32_t negative_sum;  // minus the sum of the values: removes the weights' offset from results
  int32_t negative_half_sums[2];  // the same for each half
  float scaled_negative_sum;      // multiplies the minima of weights
};

// One group of kTileRows rows, for instructions that read all of them at once.
constexpr int kTileRows = 16;
struct alignas(kCacheLine) ActivationTile {
  int8_t values[kTileRows][kGroup];
  float scales[kTileRows];
};

// The same for bfloat16 weights.
struct alignas(kCacheLine) PairTile {
  PairGroup rows[kTileRows];
};
static_assert(sizeof(ActivationTile) % kCacheLine == 0 && sizeof(PairTile) % kCacheLine == 0);

constexpr int64_t num_tiles(int64_t rows) { return (rows + kTileRows - 1) / kTileRows; }

}  // namespace hearth
