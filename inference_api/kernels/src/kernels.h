// What a variant (one instruction set) offers, as a table of functions.
//
// Each variant is two translation units, variant_*.cpp, compiled with flags of their own. Code that
// variants share is in headers and inside an anonymous namespace: with external linkage the linker
// would keep one copy of each function, compiled perhaps for instructions this processor lacks. For
// the same reason these headers call no function templates of the standard library.
#pragma once

#include <cstdint>

#include "interface.h"
#include "layout.h"
#include "layout_codes.h"

namespace hearth {

// The form of weights, by the bits of a value; those that GGUF files alone have by a hundred more
// than the number of their type there.
enum class Bits : int {
  kFloat32 = 32,
  kBFloat16 = 16,
  kInt8 = 8,
  kInt4 = 4,
  kQ41 = 103,
  kQ50 = 106,
  kQ51 = 107,
  kQ2K = 110,
  kQ3K = 111,
  kQ4K = 112,
  kQ5K = 113,
  kQ6K = 114,
  kIq2Xxs = 116,
  kIq2Xs = 117,
  kIq3Xxs = 118,
  kIq1S = 119,
  kIq4Nl = 120,
  kIq3S = 121,
  kIq2S = 122,
  kIq4Xs = 123,
  kIq1M = 129,
  kMxFp4 = 139,
  kNvFp4 = 140,
};
enum class SourceType : int { kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2 };

// The form of cached keys and values. kInt8 and kInt4: vectors are rotated, see hadamard.h. kInt8:
// behind its bytes every vector has, as a float, what one of them stands for. kInt4: CachedGroups.
enum class CacheType : int { kFloat32 = 0, kFloat16 = 1, kInt8 = 2, kInt4 = 3 };
constexpr bool is_scaled(CacheType type) { return type >= CacheType::kInt8; }
enum class NormKind : int { kRms = 0, kLayer = 1 };
enum class Mixer : int { kAttention = 0, kShortConv = 1, kDelta = 2, kMamba2 = 3, kKimiDelta = 4 };
enum class Activation : int { kSilu = 0, kGelu = 1, kGeluTanh = 2, kRelu = 3, kSquaredRelu = 4 };

// What becomes of a product's results.
enum class Finish : int {
  kStore,     // out = factor * result
  kAdd,       // out += factor * result
  kActivate,  // activated = activation(result), or of gated: activation(gate) * result
};

// What clamped gates do instead of an activation: gate sigmoid(alpha gate) (passing + 1), of gates
// up to `limit` and of what passes within it on both sides. `limit` 0: they are not clamped.
struct SwiGlu {
  float limit;
  float alpha;
};

// A matrix product result[m][n] = bias[n] + sum over k of x[m][k] * w[n][k].
struct LinearCall {
  Bits bits;
  const void* blocks;  // of the form of `bits` [panels][num_groups]
  const float* bias;   // [num_outputs] or null
  int64_t num_outputs;
  int64_t num_groups;
  const void* rows;  // FloatGroup or ActivationGroup [num_rows][num_groups]
  int64_t num_rows;
  const ActivationTile* tiles;  // [num_tiles(num_rows)][num_groups], the same; or null
  Finish finish;
  float factor;
  float* out;  // [num_rows][num_outputs], rows out_stride apart
  int64_t out_stride;
  // For kActivate. Gated: the first half of the outputs are gates, the second what passes them.
  Activation activation;
  SwiGlu swiglu;
  bool is_gated;
  void* activated;  // like rows: [num_rows][num_outputs, or half of it, / kGroup]
  // For the others: where results of row r go, and what they count. Null: to row r of `out`, once.
  const int64_t* places;
  const float* shares;
};

// A norm over `size` elements of a row, a multiple of kGroup.
struct NormCall {
  Bits bits;  // of the weights that the result is for
  NormKind kind;
  float eps;
  const float* weight;
  const float* bias;  // null for kRms
  int64_t size;
};

// One token's queries, keys and values between the projection and attention.
struct HeadsCall {
  float* queries;        // [heads][head_dim], turned where they are
  float* keys;           // [2 * kv_heads][head_dim]: keys, turned where they are, then values
  const float* qk_norm;  // [heads + kv_heads][head_dim] or null
  bool is_norm_whole;    // all query heads are normalised as one, and all key heads
  bool is_norm_last;     // once they are turned
  bool has_value_norm;   // each head of values is normalised, without a weight
  float eps;
  const float* cos;    // [rotary_dim] of the token's position
  const float* sin;    // like cos; negative in the first half, which is where it is subtracted
  int64_t rotary_dim;  // 0: nothing is turned
  float query_scale;   // of the token's position
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_dim;
  int64_t key_dim;    // of keys; other than head_dim: values are a part of them, and not written
  int64_t value_dim;  // of head_dim, or of that part
  CacheType type;
  char* place;  // of the token, in its page: see key_bytes
};

// Where a token in a tree finds what it follows: its positions from `first` on are in slots[0]…,
// all before them in their own. Of other tokens all are in their own: `first` is kNoBranch.
struct Branch {
  int64_t first;
  const int64_t* slots;
};
constexpr int64_t kNoBranch = INT64_MAX;

// Attention of `num_tokens` query tokens over a layer's keys and values. Token t sees positions of
// user row rows[t] before lengths[t]: all of them, or the last `window` of them.
struct AttentionCall {
  const float* queries;  // [tokens][kv_heads * groups][head_dim], tokens query_stride apart
  int64_t query_stride;
  CacheType type;
  HearthPages pages;
  int64_t page_offset;  // of the layer, in bytes
  const int64_t* rows;
  const int64_t* lengths;
  const Branch* branches;  // [tokens], or null where there are no trees
  int64_t num_tokens;
  int64_t num_kv_heads;
  int64_t num_groups;  // query heads that share a key-value head
  int64_t head_dim;
  int64_t value_dim;  // less than head_dim: values are the last dimensions of keys
  int64_t window;     // 0: everything
  float scale;
  const float* sinks;  // [kv_heads * groups] or null: one more score, of no value, for each head
  float* out;          // [tokens][kv_heads * groups][value_dim]
};

constexpr int kChannels = 256;  // of a convolution, that one task handles
constexpr int kMaxConvWidth = 16;

// Query vectors that one task of attention handles at once, and the longest it can handle.
constexpr int kMaxQueries = 64;
constexpr int kMaxHeadDim = 576;

// Of consecutive tokens of a row, whose B, C and x are in `mixed`: C times the convolution of B x.
struct ShortConvCall {
  const float* conv;  // [width][channels]: the last one is of the token itself
  const float* bias;  // [channels] or null
  int64_t channels;
  int64_t width;
  const float* mixed;  // [tokens][3][channels]
  int64_t num_tokens;
  int64_t num_kept;  // what follows them are guesses
  float* tail;       // [width - 1][channels]: B x of the tokens before, in the end of those kept
  float* out;        // [tokens][channels]
};

// Tokens [first_token, first_token + num_tokens) of one user row, and the query heads
// [first_group, first_group + num_groups) of one key-value head, at most kMaxQueries together: for
// each of the key-value heads [first_head, first_head + num_heads).
struct AttentionTask {
  int64_t first_token;
  int64_t num_tokens;
  int64_t first_head;
  int64_t num_heads;
  int64_t first_group;
  int64_t num_groups;
};

// Tokens of one user row over a layer's state; see hearth_delta.
struct DeltaCall {
  const HearthRecurrent& layer;
  const float* inputs;  // of the convolution, of the first token, as the two that follow
  const float* gates;
  const float* steps;
  int64_t row_stride;  // of inputs and of gates
  int64_t step_stride;
  int64_t num_tokens;
  int64_t num_kept;
  const float* tail;
  float* state;
  float* out;
};

constexpr int kDeltaTokens = 32;   // that are taken at once
constexpr int kMaxDeltaDim = 256;  // of a key or a value
constexpr int kMaxDeltaColumns = 32;

namespace {

// A type that stands for a block, which itself is not needed.
template <class Packed>
struct BlockType {
  using Block = Packed;
};

// What `visit` makes of the BlockType of such weights.
template <class Visit>
auto with_block(Bits bits, Visit visit) {
  switch (bits) {
    case Bits::kFloat32:
      return visit(BlockType<Float32Block>());
    case Bits::kBFloat16:
      return visit(BlockType<BFloat16Block>());
    case Bits::kInt8:
      return visit(BlockType<Int8Block>());
    case Bits::kQ41:
      return visit(BlockType<Q41Block>());
    case Bits::kQ50:
      return visit(BlockType<Int5Block>());
    case Bits::kQ51:
      return visit(BlockType<Q51Block>());
    case Bits::kQ2K:
      return visit(BlockType<Q2KBlock>());
    case Bits::kQ3K:
      return visit(BlockType<Q3KBlock>());
    case Bits::kQ4K:
      return visit(BlockType<Q4KBlock>());
    case Bits::kQ5K:
      return visit(BlockType<Q5KBlock>());
    case Bits::kQ6K:
      return visit(BlockType<Q6KBlock>());
    case Bits::kIq2Xxs:
      return visit(BlockType<Iq2XxsBlock>());
    case Bits::kIq2Xs:
      return visit(BlockType<Iq2XsBlock>());
    case Bits::kIq3Xxs:
      return visit(BlockType<Iq3XxsBlock>());
    case Bits::kIq1S:
      return visit(BlockType<Iq1SBlock>());
    case Bits::kIq3S:
      return visit(BlockType<Iq3SBlock>());
    case Bits::kIq2S:
      return visit(BlockType<Iq2SBlock>());
    case Bits::kIq1M:
      return visit(BlockType<Iq1MBlock>());
    case Bits::kIq4Nl:
      return visit(BlockType<Iq4NlBlock>());
    case Bits::kIq4Xs:
      return visit(BlockType<Iq4XsBlock>());
    case Bits::kMxFp4:
      return visit(BlockType<MxFp4Block>());
    case Bits::kNvFp4:
      return visit(BlockType<NvFp4Block>());
    default:
      return visit(BlockType<Int4Block>());
  }
}

constexpr bool is_quantised(Bits bits) { return bits != Bits::kFloat32 && bits != Bits::kBFloat16; }

// Whether instructions that multiply whole tiles take such weights.
constexpr bool meets_tiles(Bits bits) { return bits == Bits::kInt8 || bits == Bits::kInt4; }

// Bytes of a group of activations that meets such weights.
constexpr int64_t group_bytes(Bits bits) {
  return is_quantised(bits) ? sizeof(ActivationGroup) : sizeof(FloatGroup);
}

// kGroup numbers of a key or a value, of 4 bits. The last group of a vector may be filled up.
struct CachedGroup {
  uint16_t scale;             // half precision
  uint8_t steps[kGroup / 2];  // -8…7 of a scale: number i in the upper bits, i + kGroup / 2 below
};
static_assert(sizeof(CachedGroup) == sizeof(uint16_t) + kGroup / 2);

constexpr int64_t cached_groups(int64_t dim) { return (dim + kGroup - 1) / kGroup; }

// Elements of the cache that a key or a value takes, but for kInt4.
constexpr int64_t slot_elements(CacheType type, int64_t head_dim) {
  return head_dim + (type == CacheType::kInt8 ? static_cast<int64_t>(sizeof(float)) : 0);
}

constexpr int64_t slot_bytes(CacheType type, int64_t head_dim) {
  if (type == CacheType::kInt4) {
    return cached_groups(head_dim) * static_cast<int64_t>(sizeof(CachedGroup));
  }
  constexpr int64_t kBytes[] = {4, 2, 1};  // by CacheType
  return slot_elements(type, head_dim) * kBytes[static_cast<int>(type)];
}

// Bytes of a page that have one head's keys of a layer. Behind them are as many of its values,
// unless these are a part of keys, then the next head's.
constexpr int64_t key_bytes(CacheType type, int64_t head_dim) {
  return kPageTokens * slot_bytes(type, head_dim);
}

// The page that has a position of a row.
inline char* page_of(const HearthPages& pages, int64_t row, int64_t position) {
  return pages.base +
         pages.tables[row * pages.table_stride + position / kPageTokens] * pages.page_bytes;
}

inline int64_t num_panels(int64_t outputs) { return (outputs + kPanel - 1) / kPanel; }

// Panels of a product that can be worked on apart: of gated outputs, those of the gates.
inline int64_t num_panels(const LinearCall& call) {
  return num_panels(call.is_gated ? call.num_outputs / 2 : call.num_outputs);
}

}  // namespace

// All rows times the panels [first, end); of gated outputs, those of the gates and their others.
using LinearPanels = void (*)(const LinearCall& call, int64_t first, int64_t end);

struct Kernels {
  // The groups of a row of activations in the form that meets such weights.
  void (*prepare_row)(Bits bits, const float* x, int64_t num_groups, void* row);
  // Packs `num_groups` groups of one row of weights into lane `lane` of consecutive blocks. False
  // when a weight is not finite or too large for a half precision scale.
  bool (*pack_row)(Bits bits, SourceType type, const void* weights, int64_t num_groups, int lane,
                   void* blocks);
  void (*norm_row)(const NormCall& call, const float* x, void* row);
  void (*write_heads)(const HeadsCall& call);
  // Copies up to kTileRows rows to a row of tiles. Null where `linear_panels` wants no tiles, which
  // else wants them from min_tile_rows rows on.
  void (*fill_tiles)(const ActivationGroup* rows, int64_t num_rows, int64_t num_groups,
                     ActivationTile* tiles);
  int64_t min_tile_rows;
  LinearPanels linear_panels;
  void (*attend)(const AttentionCall& call, const AttentionTask& task);
  // Of the channels [first, end), at most kChannels.
  void (*short_conv)(const ShortConvCall& call, int64_t first, int64_t end);
  // values[i] *= sigmoid(gates[i]).
  void (*gate)(const float* gates, int64_t count, float* values);
  // One head of values.
  void (*delta_head)(const DeltaCall& call, int64_t head);
  float (*largest_of)(const float* x, int64_t count);
  // weights[i] = exp((logits[i] - largest) / temperature).
  void (*weigh)(const float* logits, int64_t count, float largest, float temperature,
                float* weights);
};

// Of each variant, and of the forms of weights that only files have.
extern const Kernels kPortable;
extern const LinearPanels kPortableForms;
#if defined(__x86_64__)
extern const Kernels kAvx2;
extern const LinearPanels kAvx2Forms;
extern const Kernels kAvxVnni;
extern const LinearPanels kAvxVnniForms;
extern const Kernels kAvx512Vnni;
extern const LinearPanels kAvx512VnniForms;
extern const Kernels kAvx512Bf16;
extern const Kernels kAmx;
#elif defined(__aarch64__)
extern const Kernels kNeon;
extern const LinearPanels kNeonForms;
extern const Kernels kDotProd;
extern const LinearPanels kDotProdForms;
extern const Kernels kI8mm;
extern const LinearPanels kI8mmForms;
#endif

}  // namespace hearth
