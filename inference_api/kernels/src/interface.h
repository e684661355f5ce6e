// The C interface, declared here only: cffi makes the Python side of this file, which is therefore
// C below the preprocessor's lines. A context is one variant with its threads; one thread at a time
// may call into a context. Sizes and pointers are trusted: the Python side has checked them.
#pragma once

#include <cstdint>

#define HEARTH_EXPORT extern "C" __attribute__((visibility("default")))

// NOLINTBEGIN(modernize-use-using): it is C
typedef struct HearthContext HearthContext;

// Variants by number, best first; null after the last. Supported: whether this processor runs it.
HEARTH_EXPORT const char* hearth_variant_name(int variant);
HEARTH_EXPORT int hearth_is_supported(int variant);

// Null when memory or threads are lacking.
HEARTH_EXPORT HearthContext* hearth_create(int variant, int num_threads);
HEARTH_EXPORT void hearth_destroy(HearthContext* context);

// Bytes of a packed matrix [outputs][inputs]; `inputs` is a multiple of 32, of NVFP4 of 64, of
// K-quants and IQ1 to IQ4_XS of 256.
// `bits`: see Bits in kernels.h.
HEARTH_EXPORT int64_t hearth_packed_bytes(int bits, int64_t outputs, int64_t inputs);

// Packs rows [first, first + count) of a matrix into `packed`, which began as zeros, not to forms
// that GGUF files alone have. `type`: 0 float32, 1 float16, 2 bfloat16. Returns the index of a row
// with a weight that is not finite or too large for its scale, or -1.
HEARTH_EXPORT int64_t hearth_pack(HearthContext* context, int bits, int type, const void* weights,
                                  int64_t first, int64_t count, int64_t inputs, void* packed);

// What the packed weights stand for, as float32 [outputs][inputs].
HEARTH_EXPORT void hearth_unpack(int bits, const void* packed, int64_t outputs, int64_t inputs,
                                 float* weights);

// out[r][o] = bias[o] + sum over i of x[r][i] w[o][i]; bias may be null. 0, or 1 without memory.
HEARTH_EXPORT int hearth_linear(HearthContext* context, int bits, const void* packed,
                                const float* bias, const float* x, int64_t rows, int64_t outputs,
                                int64_t inputs, float* out);

// What user rows remember, in pages of 32 positions that rows may share. A page begins at base +
// number * page_bytes and has, of some layers, [kv_heads][keys, then values][32][head_dim]; of
// those with latent attention [32][what is turned of a key, then the latent].
typedef struct {
  char* base;
  int64_t page_bytes;
  const int32_t* tables;  // [rows][table_stride]: the page of each 32 positions; see table_offset
  int64_t table_stride;
} HearthPages;

// See AttentionCall in kernels.h; `cache_type`: 0 float32, 1 float16, 2 int8, 3 int4. Tokens of one
// user row that follow each other share the reading of its keys and values. 0, or 1 without memory.
HEARTH_EXPORT int hearth_attention(HearthContext* context, const float* queries,
                                   int64_t query_stride, int cache_type, const HearthPages* pages,
                                   int64_t page_offset, const int64_t* rows, const int64_t* lengths,
                                   int64_t tokens, int64_t kv_heads, int64_t groups,
                                   int64_t head_dim, int64_t window, float scale,
                                   const float* sinks, float* out);

// How to draw from a row of logits; temperature 0 is the likeliest token.
typedef struct {
  double temperature;
  int64_t top_k;  // 0: all tokens
  double top_p;
  double min_p;
  uint64_t seed;  // with the position it gives the number that decides
  uint64_t position;
} HearthDraw;

// ids[r] from logits[r][vocab]. 0, or 1 without memory.
HEARTH_EXPORT int hearth_draw(HearthContext* context, const float* logits, int64_t rows,
                              int64_t vocab, const HearthDraw* draws, int64_t* ids);

typedef struct {
  const void* packed;
  const float* bias;  // [outputs] or null
  int64_t outputs;
  int64_t inputs;
  int32_t bits;
} HearthLinear;

typedef struct {
  const float* weight;  // [hidden]; null: there is no such norm
  const float* bias;    // [hidden] or null
} HearthNorm;

// What the recurrent layers remember of user rows: a block of floats of each, of one token count. A
// row that begins, at position 0, begins with zeros.
//
// Guesses that draw beside a row's token do not go into its state, but into a log, for hearth_keep.
typedef struct {
  float* base;
  int64_t row_floats;   // from one row's block to the next one's
  const int64_t* kept;  // [rows]: tokens of the next step from these positions on are guesses
  float* log;           // or null: there are none
  int64_t log_tokens;   // guesses of a row at most
  int64_t log_floats;   // from one row's log to the next one's
} HearthRecurrentRows;

// What a layer has instead of attention, or beside it: see RecurrentConfig in loading/.
typedef struct {
  HearthLinear in;   // what the mixer reads
  HearthLinear out;  // reads what it makes
  int32_t kind;      // of Mixer in kernels.h; 0: there is none
  int64_t conv_dim;
  int64_t conv_width;
  int64_t tail_at;         // where in a row's block is [conv_width - 1][conv_dim], oldest first
  const float* conv;       // [conv_width][conv_dim]: the last one is of the token itself
  const float* conv_bias;  // [conv_dim] or null
  // Of the delta rule. `in` makes queries, keys and values, which are convolved, and gates of what
  // is read; `steps` in float32 how much each head corrects, and how long a step is for it. Of
  // Mamba-2 `in` makes gates, values, keys and queries, and how long a step is. Of Kimi's rule `in`
  // makes no gates, and `steps` makes how much each head corrects and two latents, of which `gates`
  // and `forgets` make gates and how long a step is for each channel of a key.
  HearthLinear steps;    // [2 heads][hidden], of Kimi's [heads + 2 rank]; none of Mamba-2
  HearthLinear gates;    // [heads * value_dim][rank]; without outputs: it is not Kimi's rule
  HearthLinear forgets;  // [heads * key_dim][rank]
  int64_t heads;         // of values
  int64_t key_heads;     // as many of queries and of keys, each of heads that follow each other
  int32_t is_tiled;      // of heads that take turns instead
  int64_t key_dim;       // a multiple of 16
  int64_t value_dim;     // like key_dim; neither is more than 256
  int32_t is_doubled;    // of the delta rule: heads correct twice as much
  float norm_eps;        // of head_norm
  // Where in a row's log is [log_tokens] of what `in`, `gates` and `forgets` make, then of `steps`.
  int64_t log_at;
  int64_t state_at;  // where in a row's block is [heads][key_dim * value_dim], as variants have it
  const float* decay;      // [heads], below 0: the logarithm of what a step of length 1 leaves
  const float* step_bias;  // [heads], or of Kimi's [heads][key_dim]
  const float* head_norm;  // of what is read, [value_dim]; of Mamba-2, gated, [heads][value_dim],
                           // or null
  const float* skip;       // [heads] of Mamba-2: how much of a value is on what is read; else null
} HearthRecurrent;

// The delta rule of a layer over tokens of one row: `rows` [tokens][row_stride] are what `in`
// makes, then `gates` and `forgets`, and `steps` [tokens][2 heads] what `steps` does; `tail` and
// `state` are in the row's block. The state moves on over the first `num_kept` tokens; what follows
// them, at most 32, are drafts. `out` [tokens][heads][value_dim] may be null.
HEARTH_EXPORT void hearth_delta(HearthContext* context, const HearthRecurrent* layer,
                                const float* rows, int64_t row_stride, const float* steps,
                                int64_t num_tokens, int64_t num_kept, const float* tail,
                                float* state, float* out);

// Around a layer of several streams of the residual, see HearthStreams: a router says how much a
// token is of each modality, of which there are as many as streams, and that says how to mix them.
typedef struct {
  const float* norm;     // [hidden] of what the router reads
  const float* router;   // [streams][hidden]
  const float* predict;  // [streams * streams][streams]: what each stream gets of each before it
  const float* correct;  // [streams][streams]: what each gets of the error, beside all of it
  const float* scale;    // [hidden] of the first stream, for the gates of the layer's inputs
} HearthAltUp;

// Attention, a recurrent mixer or both, which read the same, and then an MLP or experts; of these
// some may be left out.
typedef struct {
  HearthNorm attention_norm;         // where there is none, attention reads the residual as it is
  HearthNorm attention_output_norm;  // of what attention adds
  HearthNorm mlp_norm;  // where there is none, the MLP of a parallel layer shares the attention's
  HearthNorm mlp_output_norm;
  int64_t num_kv_heads;
  int64_t head_dim;
  int64_t value_dim;          // of each head's part of what `out` reads
  int64_t rotary_dim;         // of a head: as many of its first dimensions are turned
  const float* qk_norm;       // [heads + kv_heads][head_dim], or of what there is; or null
  const float* cos;           // [positions][rotary_dim], or null: nothing is turned
  const float* sin;           // like cos; negative in the first half
  const float* query_scales;  // [positions] or null: what turned queries are multiplied by
  const float* sinks;         // [heads] or null: see AttentionCall
  HearthLinear qkv;     // queries, then the gates of outputs where there are any, keys, and values
  HearthLinear values;  // in a form of their own; without outputs: they are the last of qkv
  int32_t are_keys_values;  // what keys are made of are the values too
  int32_t is_kv_shared;     // keys and values are another layer's, which is before this one
  // Of latent attention, instead of qkv: see LatentConfig in loading/. Without q_a queries are made
  // of what attention reads. kv_a makes what is turned of a key, then the latent, and one key-value
  // head is of both. k_b and v_b stack a matrix of each head, whose sizes are multiples of 32: from
  // what is not turned of its queries, and zeros, to what meets latents; and from latents to
  // values.
  HearthLinear q_a;
  HearthLinear q_b;
  HearthLinear kv_a;
  HearthLinear k_b;  // [heads * rank][…]; without outputs: there are no latents
  HearthLinear v_b;  // [heads * …][rank]
  const float* q_a_norm;
  const float* kv_a_norm;
  HearthLinear out;  // of attention; without outputs: there is none
  HearthLinear up;   // gates, then what passes them, when the MLP is gated; or no outputs
  HearthLinear down;
  // [experts][hidden], float32 in every form: up and down then stack those of the experts, and so
  // do their biases. Without outputs: the layer has one MLP.
  HearthLinear router;
  const float* selection_bias;  // [experts] or null
  HearthLinear latent_down;     // [size][hidden]: what the experts read; or no outputs
  HearthLinear latent_up;       // [hidden][size]: on what they make together
  HearthLinear shared_up;       // of an MLP beside the experts; without outputs: there is none
  HearthLinear shared_down;
  HearthLinear shared_gate;  // [1][hidden], as the router: how much that MLP counts; or no outputs
  const float* expert_scales;      // [experts]: factors of their shares; or null
  HearthNorm router_norm;          // of what the router reads; where there is none, it is the MLP's
  HearthNorm experts_norm;         // like it, of what the experts read
  HearthNorm experts_output_norm;  // of what they make, as the next; none: they add to the residual
  HearthNorm shared_output_norm;
  int64_t page_offset;   // where a page has this layer's keys and values, in bytes
  int64_t table_offset;  // where `tables` have those of this layer's group, in numbers
  int64_t window;        // 0: everything is seen
  HearthRecurrent recurrent;
  HearthLinear input_gate;    // [size][hidden]: see HearthLayerInputs; without outputs: reads none
  HearthLinear input_out;     // [hidden][size]
  HearthNorm input_norm;      // of what that adds
  const float* output_scale;  // [1]: factor of the residual behind the layer; or null
  // LAuReL (Menghani et al. 2024, arXiv 2411.07501): what attention reads and a normalised map of
  // it of low rank are added to the residual too, which is then divided by the root of 2.
  HearthLinear laurel_in;  // [rank][hidden]; without outputs: there is none
  HearthLinear laurel_out;
  HearthNorm laurel_norm;
  // [1] or null: gates of the MLP count as far as they are more than so many standard deviations
  // above the mean of the token's gates.
  const float* gate_cutoff;
  HearthAltUp altup;  // where there are streams
} HearthLayer;

// What layers read of a token besides the residual: each its own part of an embedding.
typedef struct {
  int64_t size;             // of a layer's part; 0: there is none
  int64_t num_tokens;       // that have one: later ones have the first token's
  const void* embedding;    // [num_tokens][layers * size], packed
  int32_t bits;             // of it
  HearthLinear projection;  // [layers * size][hidden]: is on it, of the token's usual embedding
  const float* norm;        // [size] of each part of the projection
} HearthLayerInputs;

// Alternating updates: the residual is several streams. The first begins as the embedding, the
// others as products of it. Their mean is what the head reads, once the others are multiplied back;
// what is multiplied is made as large as the first one.
typedef struct {
  int64_t count;     // at most kMaxStreams; 0: the residual is one
  HearthLinear in;   // [(count - 1) * hidden][hidden]
  HearthLinear out;  // like it, of each stream its own [hidden][hidden]
} HearthStreams;

// How experts are chosen: see MixtureConfig in engine/.
typedef struct {
  int64_t experts_per_token;
  int64_t num_groups;  // 1: all experts are of one
  int64_t groups_per_token;
  int64_t num_scored;  // 1 or 2
  float scale;         // of all shares
  float least_sum;     // is on a sum that is divided by
  int32_t is_sigmoid;
  int32_t is_renormalised;  // the shares of a token's experts sum to one
} HearthMixture;

// A decoder; see ModelConfig and Decoder in engine/ for what the fields mean. The numbers of an
// enumeration are those of kernels.h.
typedef struct {
  const HearthLayer* layers;
  const void* embedding;  // [vocab][hidden], packed; of a tied head the same
  HearthNorm final_norm;
  HearthLinear head;
  int64_t num_layers;
  int64_t hidden;
  int64_t num_heads;
  HearthPages pages;
  HearthRecurrentRows recurrent;
  int32_t bits;  // of weights but routers and files' forms: any quantised meet the same activations
  int32_t embedding_bits;
  int32_t cache_type;
  int32_t norm;
  int32_t activation;
  int32_t is_gated;
  int32_t is_parallel;
  int32_t is_qk_norm_whole;  // all query heads are normalised as one, and all key heads
  int32_t is_qk_norm_last;   // once they are turned
  int32_t has_value_norm;    // each head of values is normalised, without a weight
  int32_t has_output_gates;  // what attention makes counts as much as the sigmoid of its gate
  float norm_eps;
  float attention_scale;
  float embedding_multiplier;
  float residual_multiplier;
  float logits_divisor;
  float logits_softcap;  // c: logits become c tanh(logits / c); 0: they stay
  float swiglu_limit;    // see SwiGlu; 0: gates are as the activation says
  float swiglu_alpha;
  HearthMixture mixture;  // of layers that have a router
  HearthLayerInputs inputs;
  HearthStreams streams;
} HearthModel;

// Tokens of any user rows, those of a row in their order. A token follows the `position` slots
// before it; in a tree, whose branches share positions, it stands in another slot than its
// position's, and follows the token `parents` names: of that one's branch, and of the slots before
// the tree.
typedef struct {
  const int64_t* ids;  // [tokens], as all but outputs and the results
  const int64_t* rows;
  const int64_t* positions;
  const int64_t* slots;    // where keys and values are written
  const int64_t* parents;  // indices of earlier tokens, -1: none; null where slots are positions
  const int64_t* outputs;  // [outputs] indices of tokens, ascending
  int64_t num_tokens;
  int64_t num_outputs;
  float* logits;  // result [outputs][vocab]: of what follows these tokens
  float* hidden;  // result [tokens][hidden], after the final norm; or null
  // Where a model's layers are several processes': what the layers before these have made of the
  // residual, [tokens][hidden], or null for the embedding; and what these make of it, a result like
  // it, or null.
  const float* before;
  float* after;
} HearthBatch;

// Writes the keys and values of the tokens and computes the results. 0, or 1 without memory.
HEARTH_EXPORT int hearth_step(HearthContext* context, const HearthModel* model,
                              const HearthBatch* batch);

// The first `count` guesses of a row's last step go into its state.
HEARTH_EXPORT int hearth_keep(HearthContext* context, const HearthModel* model, int64_t row,
                              int64_t count);

// Heads that guess tokens from a model's hidden state: see engine/medusa.py. A later layer
// [hidden][hidden] is of head `its number % num_heads`.
typedef struct {
  HearthLinear first;         // [heads * hidden][hidden]: the first layer of all heads
  const HearthLinear* later;  // [num_later], or null
  const HearthLinear*
      outputs;  // [num_outputs] of [tokens][hidden]: one for all heads, or each one's
  int64_t num_heads;
  int64_t num_later;
  int64_t num_outputs;
  int64_t num_ranks;  // of tokens asked for, at most as many as there are
  float logits_divisor;
  float logits_softcap;  // as the model's
} HearthHeads;

// From `hidden` [rows][hidden] the likeliest tokens [rows][heads][ranks] of each head, best first,
// as indices of outputs, and their probabilities. 0, or 1 without memory.
HEARTH_EXPORT int hearth_guess(HearthContext* context, const HearthHeads* heads,
                               const float* hidden, int64_t rows, int64_t* tokens,
                               float* probabilities);
// NOLINTEND(modernize-use-using)
