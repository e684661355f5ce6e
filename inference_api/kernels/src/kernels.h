// What a variant (one instruction set) offers, as a table of functions.
//
// Each variant is one translation unit, variant_*.cpp, compiled with flags of its own. Code that
// variants share is in headers and inside an anonymous namespace: with external linkage the linker
// would keep one copy of each function, compiled perhaps for instructions this processor lacks. For
// the same reason these headers call no function templates of the standard library.
#pragma once

#include <cstdint>

#include "layout.h"

namespace hearth {

enum class Bits : int { kInt8 = 8, kInt4 = 4 };
enum class SourceType : int { kFloat32 = 0, kFloat16 = 1, kBFloat16 = 2 };

// A matrix product out[m][n] = bias[n] + sum over k of x[m][k] * w[n][k].
struct LinearCall {
  Bits bits;
  const void* blocks;  // Int8Block or Int4Block [panels][num_groups]
  const float* bias;   // [num_outputs] or null
  int64_t num_outputs;
  int64_t num_groups;
  const ActivationGroup* rows;  // [num_rows][num_groups]
  int64_t num_rows;
  float* out;  // [num_rows][num_outputs]
};

// Attention of `num_tokens` query tokens over a cache. Token t sees positions of cache row rows[t]
// before lengths[t]: all of them, or the last `window` of them.
struct AttentionCall {
  const float* queries;  // [tokens][kv_heads * groups][head_dim], tokens query_stride apart
  int64_t query_stride;
  const float* keys;    // [rows][kv_heads][capacity][head_dim]
  const float* values;  // like keys
  int64_t row_stride;
  int64_t head_stride;
  const int64_t* rows;
  const int64_t* lengths;
  int64_t num_tokens;
  int64_t num_kv_heads;
  int64_t num_groups;  // query heads that share a key-value head
  int64_t head_dim;
  int64_t window;  // 0: everything
  float scale;
  float* out;  // [tokens][kv_heads * groups][head_dim]
};

// Query vectors that one task of attention handles at once, and the longest it can handle.
constexpr int kMaxQueries = 32;
constexpr int kMaxHeadDim = 256;

// Tokens [first_token, first_token + num_tokens) of one cache row, and the query heads
// [first_group, first_group + num_groups) of one key-value head; at most kMaxQueries together.
struct AttentionTask {
  int64_t first_token;
  int64_t num_tokens;
  int64_t kv_head;
  int64_t first_group;
  int64_t num_groups;
};

struct Kernels {
  void (*quantise_row)(const float* x, int64_t num_groups, ActivationGroup* row);
  // Packs `num_groups` groups of one row of weights into lane `lane` of consecutive blocks. False
  // when a weight is not finite or too large for a half precision scale.
  bool (*pack_row)(Bits bits, SourceType type, const void* weights, int64_t num_groups, int lane,
                   void* blocks);
  // All rows times the panels [first, end).
  void (*linear_panels)(const LinearCall& call, int64_t first, int64_t end);
  void (*attend)(const AttentionCall& call, const AttentionTask& task);
};

extern const Kernels kPortable;
#if defined(__x86_64__)
extern const Kernels kAvx2;
extern const Kernels kAvxVnni;
extern const Kernels kAvx512Vnni;
#endif

}  // namespace hearth
