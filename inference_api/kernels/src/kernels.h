// The functions of a variant (one instruction set), as a table.
//
// Each variant has two translation units, variant_*.cpp, compiled with flags of their own. Code
// that variants share is in headers, in an anonymous namespace. With external linkage, the linker
// would keep one copy of each function, perhaps compiled for instructions that this processor
// lacks. For the same reason, these headers call no function templates of the standard library.
#pragma once

#include <cstdint>

#include "interface.h"
#include "layout.h"
#include "layout_codes.h"

namespace hearth {

// The form of weights. Its number is the bits of a value; for forms that only GGUF files have, 100
// plus the number of the GGUF type.
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

// The form of cached keys and values. In kInt8 and kInt4, vectors are rotated: see hadamard.h. In
// kInt8, the scale of a vector, a float, follows its bytes. kInt4 consists of CachedGroups.
enum class CacheType : int { kFloat32 = 0, kFloat16 = 1, kInt8 = 2, kInt4 = 3 };
constexpr bool is_scaled(CacheType type) { return type >= CacheType::kInt8; }
enum class NormKind : int { kRms = 0, kLayer = 1 };
enum class Mixer : int { kAttention = 0, kShortConv = 1, kDelta = 2, kMamba2 = 3, kKimiDelta = 4 };
enum class Activation : int { kSilu = 0, kGelu = 1, kGeluTanh = 2, kRelu = 3, kSquaredRelu = 4 };

// How a product's results are used.
enum class Finish : int {
  kStore,     // out = factor * result
  kAdd,       // out += factor * result
  kActivate,  // activated = activation(result); if gated, activation(gate) * result
};

// The function of clamped gates, instead of an activation: gate sigmoid(alpha gate) (passing + 1).
// Gates are at most `limit`, and `passing` is within it on both sides. `limit` 0: not clamped.
struct SwiGlu {
  float limit;
  float alpha;
};

// A matrix product result[m][n] = bias[n] + sum over k of x[m][k] * w[n][k].
struct LinearCall {
  Bits bits;
  const void* blocks;  // [panels][num_groups], in the form `bits`
  const float* bias;   // [num_outputs] or null
  int64_t num_outputs;
  int64_t num_groups;
  const void* rows;  // FloatGroup or ActivationGroup [num_rows][num_groups]
  int64_t num_rows;
  const void* tiles;  // the same rows as ActivationTile or PairTile
                      // [num_tiles(num_rows)][num_groups], or null
  Finish finish;
  float factor;
  float* out;  // [num_rows][num_outputs], rows out_stride apart
  int64_t out_stride;
  // For kActivate. If gated, the first half of the outputs are gates, the second what they gate.
  Activation activation;
  SwiGlu swiglu;
  bool is_gated;
  void* activated;  // like rows: [num_rows][num_outputs, or half of it, / kGroup]
  // For the others: each row's row of `out`, and the weight of its results. Null: the same, and 1.
  const int64_t* places;
  const float* shares;
};

// A norm over `size` elements of a row, a multiple of kGroup.
struct NormCall {
  Bits bits;  // form of the weights that will multiply the result
  NormKind kind;
  float eps;
  const float* weight;
  const float* bias;  // null for kRms
  int64_t size;
};

// One token's queries, keys and values between the projection and attention.
struct HeadsCall {
  float* queries;        // [heads][head_dim], turned in place
  float* keys;           // [2 * kv_heads][head_dim]: keys, turned in place, then values
  const float* qk_norm;  // [heads + kv_heads][head_dim] or null
  bool is_norm_whole;    // all query heads are normalised as one, and all key heads
  bool is_norm_last;     // queries and keys are turned, then normalised
  bool has_value_norm;   // each head of values is normalised, without a weight
  float eps;
  const float* cos;    // [rotary_dim] at the token's position
  const float* sin;    // like cos; negative in the first half, which is where it is subtracted
  int64_t rotary_dim;  // 0: nothing is turned
  float query_scale;   // at the token's position
  int64_t num_heads;
  int64_t num_kv_heads;
  int64_t head_dim;
  int64_t key_dim;    // size of keys; unless it is head_dim, values are part of keys, not written
  int64_t value_dim;  // size of values: head_dim, or of that part
  CacheType type;
  char* place;  // the token's place in its page: see key_bytes
};

// The slots that a token in a tree follows: its positions from `first` on are in slots[0], …; each
// earlier position is in the slot of the same number. For other tokens `first` is kNoBranch.
struct Branch {
  int64_t first;
  const int64_t* slots;
};
constexpr int64_t kNoBranch = INT64_MAX;

// Attention of `num_tokens` query tokens over a layer's keys and values. Token t sees the positions
// before lengths[t] in user row rows[t]: all of them, or the last `window` of them.
struct AttentionCall {
  const float* queries;  // [tokens][kv_heads * groups][head_dim], tokens query_stride apart
  int64_t query_stride;
  CacheType type;
  HearthPages pages;
  int64_t page_offset;  // place of the layer in a page, in bytes
  const int64_t* rows;
  const int64_t* lengths;
  const Branch* branches;  // [tokens], or null if there are no trees
  int64_t num_tokens;
  int64_t num_kv_heads;
  int64_t num_groups;  // query heads that share a key-value head
  int64_t head_dim;
  int64_t value_dim;  // less than head_dim: values are the last dimensions of keys
  int64_t window;     // 0: all positions
  float scale;
  const float* sinks;  // [kv_heads * groups] or null: one more score for each head, without a value
  float* out;          // [tokens][kv_heads * groups][value_dim]
};

constexpr int kChannels = 256;  // channels of a convolution that one task handles
constexpr int kMaxConvWidth = 16;

// Query vectors that one task of attention handles at once, and their largest size.
constexpr int kMaxQueries = 64;
constexpr int kMaxHeadDim = 576;

// C times the convolution of B x, for consecutive tokens of a row; `mixed` has their B, C and x.
struct ShortConvCall {
  const float* conv;  // [width][channels]; the last one is for the token itself
  const float* bias;  // [channels] or null
  int64_t channels;
  int64_t width;
  const float* mixed;  // [tokens][3][channels]
  int64_t num_tokens;
  int64_t num_kept;  // tokens after these are guesses
  float* tail;       // [width - 1][channels]: B x of the tokens before; ends as that of kept tokens
  float* out;        // [tokens][channels]
};

// Tokens [first_token, first_token + num_tokens) of one user row, times query heads
// [first_group, first_group + num_groups) of a key-value head: at most kMaxQueries. They are
// handled for each of the key-value heads [first_head, first_head + num_heads).
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
  const float* inputs;  // the first token's inputs of the convolution; gates and steps likewise
  const float* gates;
  const float* steps;
  int64_t row_stride;  // distance of tokens in inputs and gates
  int64_t step_stride;
  int64_t num_tokens;
  int64_t num_kept;
  const float* tail;
  float* state;
  float* out;
};

constexpr int kDeltaTokens = 32;   // tokens that are handled at once
constexpr int kMaxDeltaDim = 256;  // largest size of a key or a value
constexpr int kMaxDeltaColumns = 32;

namespace {

// Names a type of block without an object of it.
template <class Packed>
struct BlockType {
  using Block = Packed;
};

// Returns visit(BlockType) for the block type of weights in this form.
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

// Returns the bytes of a tile of activations that weights in this form are multiplied by.
constexpr int64_t tile_bytes(Bits bits) {
  return is_quantised(bits) ? sizeof(ActivationTile) : sizeof(PairTile);
}

// Returns the bytes of a group of activations that weights in this form are multiplied by.
constexpr int64_t group_bytes(Bits bits) {
  return is_quantised(bits) ? sizeof(ActivationGroup) : sizeof(FloatGroup);
}

// kGroup numbers of a key or a value, in 4 bits. The last group of a vector may be padded.
struct CachedGroup {
  uint16_t scale;             // half precision
  uint8_t steps[kGroup / 2];  // -8…7 scales: number i in the high half, i + kGroup / 2 in the low
};
static_assert(sizeof(CachedGroup) == sizeof(uint16_t) + kGroup / 2);

constexpr int64_t cached_groups(int64_t dim) { return (dim + kGroup - 1) / kGroup; }

// Returns the elements of the cache that a key or a value takes. Not for kInt4.
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

// Returns the bytes of one head's keys in a layer's part of a page. As many bytes of values follow,
// unless values are part of keys; then comes the next head.
constexpr int64_t key_bytes(CacheType type, int64_t head_dim) {
  return kPageTokens * slot_bytes(type, head_dim);
}

// Returns the page that has a position of a row.
inline char* page_of(const HearthPages& pages, int64_t row, int64_t position) {
  return pages.base +
         pages.tables[row * pages.table_stride + position / kPageTokens] * pages.page_bytes;
}

inline int64_t num_panels(int64_t outputs) { return (outputs + kPanel - 1) / kPanel; }

// Returns the number of panels that can be computed separately; with gates, the gates' panels.
inline int64_t num_panels(const LinearCall& call) {
  return num_panels(call.is_gated ? call.num_outputs / 2 : call.num_outputs);
}

}  // namespace

// Multiplies all rows by the panels [first, end). With gates, these are the gates' panels, each
// with the panel that it gates.
using LinearPanels = void (*)(const LinearCall& call, int64_t first, int64_t end);

struct Kernels {
  // Writes a row of activations in the form that weights of `bits` are multiplied by.
  void (*prepare_row)(Bits bits, const float* x, int64_t num_groups, void* row);
  // Packs `num_groups` groups of one row of weights into lane `lane` of consecutive blocks. Returns
  // false if a weight is not finite or too large for a half precision scale.
  bool (*pack_row)(Bits bits, SourceType type, const void* weights, int64_t num_groups, int lane,
                   void* blocks);
  void (*norm_row)(const NormCall& call, const float* x, void* row);
  void (*write_heads)(const HeadsCall& call);
  // Copies up to kTileRows rows to a row of tiles, which `linear_panels` requires from
  // min_tile_rows(bits) rows on. Null if it never does.
  void (*fill_tiles)(Bits bits, const void* rows, int64_t num_rows, int64_t num_groups,
                     void* tiles);
  int64_t (*min_tile_rows)(Bits bits);
  LinearPanels linear_panels;
  void (*attend)(const AttentionCall& call, const AttentionTask& task);
  // Computes channels [first, end), at most kChannels.
  void (*short_conv)(const ShortConvCall& call, int64_t first, int64_t end);
  // values[i] *= sigmoid(gates[i]).
  void (*gate)(const float* gates, int64_t count, float* values);
  // Computes one value head.
  void (*delta_head)(const DeltaCall& call, int64_t head);
  float (*largest_of)(const float* x, int64_t count);
  // weights[i] = exp((logits[i] - largest) / temperature).
  void (*weigh)(const float* logits, int64_t count, float largest, float temperature,
                float* weights);
};

// The tables of all variants, and their products with forms of weights that only files have.
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
