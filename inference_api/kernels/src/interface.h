// The C interface, declared only here. cffi makes the Python side from this file, which is
// therefore C except for the preprocessor's lines. A context is one variant with its threads; one
// thread at a time may call into a context. Sizes and pointers are trusted: the Python side has
// checked them. Functions that compute return 0, or 1 if there is no memory.
#pragma once

#include <cstdint>

#define HEARTH_EXPORT extern "C" __attribute__((visibility("default")))

// NOLINTBEGIN(modernize-use-using): it is C
typedef struct HearthContext HearthContext;

// Returns the name of a variant by number, best first; null after the last.
HEARTH_EXPORT const char* hearth_variant_name(int variant);
// Returns whether this processor can run a variant.
HEARTH_EXPORT int hearth_is_supported(int variant);

// Returns null if memory or threads are lacking.
HEARTH_EXPORT HearthContext* hearth_create(int variant, int num_threads);
HEARTH_EXPORT void hearth_destroy(HearthContext* context);

// Returns the bytes of a packed matrix [outputs][inputs]. `inputs` is a multiple of 32; with NVFP4
// of 64, with K-quants and IQ1 to IQ4_XS of 256. For `bits` see Bits in kernels.h.
HEARTH_EXPORT int64_t hearth_packed_bytes(int bits, int64_t outputs, int64_t inputs);

// Packs rows [first, first + count) of a matrix into `packed`, which began as zeros. Forms that
// only GGUF files have are not supported. `type`: 0 float32, 1 float16, 2 bfloat16. Returns the
// index of a row with a weight that is not finite or too large for its scale; -1 if there is none.
HEARTH_EXPORT int64_t hearth_pack(HearthContext* context, int bits, int type, const void* weights,
                                  int64_t first, int64_t count, int64_t inputs, void* packed);

// Writes the packed weights as float32 to `weights` [outputs][inputs].
HEARTH_EXPORT void hearth_unpack(int bits, const void* packed, int64_t outputs, int64_t inputs,
                                 float* weights);

// out[r][o] = bias[o] + sum over i of x[r][i] w[o][i]; bias may be null.
HEARTH_EXPORT int hearth_linear(HearthContext* context, int bits, const void* packed,
                                const float* bias, const float* x, int64_t rows, int64_t outputs,
                                int64_t inputs, float* out);

// The KV cache of user rows, in pages of 32 positions, which rows may share. Page p begins at
// base + p * page_bytes. For each of some layers it has [kv_heads][keys, values][32][head_dim];
// with latent attention [32][the turned part of a key, then the latent].
typedef struct {
  char* base;
  int64_t page_bytes;
  const int32_t* tables;  // [rows][table_stride]: the page of each 32 positions; see table_offset
  int64_t table_stride;
} HearthPages;

// See AttentionCall in kernels.h. `cache_type`: 0 float32, 1 float16, 2 int8, 3 int4. Consecutive
// tokens of one user row read its keys and values together.
HEARTH_EXPORT int hearth_attention(HearthContext* context, const float* queries,
                                   int64_t query_stride, int cache_type, const HearthPages* pages,
                                   int64_t page_offset, const int64_t* rows, const int64_t* lengths,
                                   int64_t tokens, int64_t kv_heads, int64_t groups,
                                   int64_t head_dim, int64_t window, float scale,
                                   const float* sinks, float* out);

// How to draw from a row of logits. Temperature 0 takes the likeliest token.
typedef struct {
  double temperature;
  int64_t top_k;  // 0: all tokens
  double top_p;
  double min_p;
  uint64_t seed;  // seed and position give the random number
  uint64_t position;
} HearthDraw;

// Draws ids[r] from logits[r][vocab].
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

// The states of user rows in recurrent layers: a block of floats for each row, after the same
// number of tokens in all layers. A row that begins at position 0 begins with zeros.
//
// Guesses, which draw beside a row's token, do not change its state: a log has them for
// hearth_keep.
typedef struct {
  float* base;
  int64_t row_floats;   // distance of rows' blocks
  const int64_t* kept;  // [rows]: tokens of the next step from these positions on are guesses
  float* log;           // null if there are no guesses
  int64_t log_tokens;   // most guesses of a row
  int64_t log_floats;   // distance of rows' logs
} HearthRecurrentRows;

// The mixer that a layer has instead of attention, or beside it: see RecurrentConfig in loading/.
typedef struct {
  HearthLinear in;   // makes the mixer's inputs
  HearthLinear out;  // reads the mixer's outputs
  int32_t kind;      // a Mixer of kernels.h; 0: there is none
  int64_t conv_dim;
  int64_t conv_width;
  int64_t tail_at;         // place of [conv_width - 1][conv_dim] in a row's block, oldest first
  const float* conv;       // [conv_width][conv_dim]; the last one is for the token itself
  const float* conv_bias;  // [conv_dim] or null
  // For rules with a state. In the delta rule, `in` makes queries, keys and values, which are
  // convolved, and gates of outputs; `steps`, in float32, makes how much each head corrects and the
  // length of its step. In Mamba-2, `in` makes gates, values, keys, queries and step lengths. In
  // Kimi's rule, `in` makes no gates; `steps` makes how much each head corrects and two latents,
  // from which `gates` makes gates and `forgets` a step length for each channel of a key.
  HearthLinear steps;    // [2 heads][hidden], Kimi's [heads + 2 rank][hidden]; none in Mamba-2
  HearthLinear gates;    // [heads * value_dim][rank]; without outputs: it is not Kimi's rule
  HearthLinear forgets;  // [heads * key_dim][rank]
  int64_t heads;         // value heads
  int64_t key_heads;   // heads of queries, and of keys; each is shared by neighbouring value heads
  int32_t is_tiled;    // each is shared by every key_heads-th value head instead
  int64_t key_dim;     // a multiple of 16
  int64_t value_dim;   // like key_dim; neither is more than 256
  int32_t is_doubled;  // in the delta rule, heads correct twice as much
  float norm_eps;      // epsilon of head_norm
  // Place in a row's log of [log_tokens] outputs of `in`, `gates` and `forgets`, then of `steps`.
  int64_t log_at;
  int64_t state_at;  // place of [heads][key_dim * value_dim] in a row's block, as variants have it
  const float* decay;      // [heads], below 0: the logarithm of what a step of length 1 leaves
  const float* step_bias;  // [heads], Kimi's [heads][key_dim]
  const float* head_norm;  // for outputs: [value_dim]; in Mamba-2, once gated, [heads][value_dim]
                           // or null
  const float* skip;       // [heads] in Mamba-2: factors of values added to outputs; else null
} HearthRecurrent;

// Runs the rule of a layer over tokens of one row. `rows` [tokens][row_stride] are outputs of `in`,
// then of `gates` and `forgets`; `steps` [tokens][2 heads] are outputs of `steps`. `tail` and
// `state` are in the row's block. The first `num_kept` tokens change the state; the tokens after
// them, at most 32, are drafts. `out` [tokens][heads][value_dim] may be null.
HEARTH_EXPORT void hearth_delta(HearthContext* context, const HearthRecurrent* layer,
                                const float* rows, int64_t row_stride, const float* steps,
                                int64_t num_tokens, int64_t num_kept, const float* tail,
                                float* state, float* out);

// How a layer updates several streams of the residual: see HearthStreams. A router says how much a
// token has of each modality, of which there are as many as streams; this decides how to mix them.
typedef struct {
  const float* norm;     // [hidden] for the router's input
  const float* router;   // [streams][hidden]
  const float* predict;  // [streams * streams][streams]: shares of all streams to add to each
  const float* correct;  // [streams][streams]: what each gets of the error, beside all of it
  const float* scale;    // [hidden] for the first stream, in the gates of the layer's inputs
} HearthAltUp;

// A layer: attention, a recurrent mixer or both, which have the same input, and then an MLP or
// experts. Parts may be missing.
typedef struct {
  HearthNorm attention_norm;         // without it, attention reads the residual as it is
  HearthNorm attention_output_norm;  // for what attention adds
  HearthNorm mlp_norm;               // without it, the MLP of a parallel layer shares attention's
  HearthNorm mlp_output_norm;
  int64_t num_kv_heads;
  int64_t head_dim;
  int64_t value_dim;     // size of a head's part of the input of `out`
  int64_t rotary_dim;    // number of a head's first dimensions that are turned
  const float* qk_norm;  // [heads + kv_heads][head_dim], without heads that are missing; or null
  const float* cos;      // [positions][rotary_dim]; null: nothing is turned
  const float* sin;      // like cos; negative in the first half
  const float* query_scales;  // [positions]: factors of turned queries; or null
  const float* sinks;         // [heads] or null: see AttentionCall
  HearthLinear qkv;           // makes queries, then gates of outputs if there are any, keys, values
  HearthLinear values;        // makes values, in a form of its own; without outputs: qkv makes them
  int32_t are_keys_values;    // keys, before norm and rope, serve as values too
  int32_t is_kv_shared;       // keys and values are those of an earlier layer
  // For latent attention, instead of qkv: see LatentConfig in loading/. Without q_a, queries are
  // made from attention's input. kv_a makes the turned part of a key, then the latent; both
  // together are the one key-value head. k_b and v_b stack one matrix for each head, with sizes
  // that are multiples of 32: from the unturned part of a query, padded with zeros, to a query for
  // latents; and from latents to values.
  HearthLinear q_a;
  HearthLinear q_b;
  HearthLinear kv_a;
  HearthLinear k_b;  // [heads * rank][…]; without outputs: there are no latents
  HearthLinear v_b;  // [heads * …][rank]
  const float* q_a_norm;
  const float* kv_a_norm;
  HearthLinear out;  // reads attention's outputs; without outputs: there is no attention
  HearthLinear up;   // if gated, makes gates, then what they gate; without outputs: there is no MLP
  HearthLinear down;
  // [experts][hidden], float32 in every form. With it, up and down stack the matrices of all
  // experts, and so do their biases. Without outputs: the layer has one MLP.
  HearthLinear router;
  const float* selection_bias;  // [experts] or null
  HearthLinear latent_down;     // [size][hidden]: makes the experts' input; or no outputs
  HearthLinear latent_up;       // [hidden][size]: reads the sum of their outputs
  HearthLinear shared_up;       // of an MLP beside the experts; without outputs: there is none
  HearthLinear shared_down;
  HearthLinear shared_gate;  // [1][hidden], like the router: the shared MLP's weight; or no outputs
  const float* expert_scales;      // [experts]: factors of their shares; or null
  HearthNorm router_norm;          // for the router's input; without it, the MLP's norm
  HearthNorm experts_norm;         // for the experts' input; without it, the MLP's norm
  HearthNorm experts_output_norm;  // for the sum of experts; without it, they add to the residual
  HearthNorm shared_output_norm;   // for the shared MLP's output
  int64_t page_offset;             // place of this layer's keys and values in a page, in bytes
  int64_t table_offset;            // place of this layer's group in `tables`, in numbers
  int64_t window;                  // 0: all positions are seen
  HearthRecurrent recurrent;
  HearthLinear input_gate;    // [size][hidden]: see HearthLayerInputs; without outputs: reads none
  HearthLinear input_out;     // [hidden][size]
  HearthNorm input_norm;      // for what input_out adds
  const float* output_scale;  // [1]: factor of the residual after the layer; or null
  // LAuReL (Menghani et al. 2024, arXiv 2411.07501): attention's input and a normalised map of it,
  // of low rank, are also added to the residual, which is then divided by the square root of 2.
  HearthLinear laurel_in;  // [rank][hidden]; without outputs: there is none
  HearthLinear laurel_out;
  HearthNorm laurel_norm;
  // [1] or null: gates of the MLP count only by what exceeds the mean of the token's gates plus
  // this many standard deviations.
  const float* gate_cutoff;
  HearthAltUp altup;  // if there are streams
} HearthLayer;

// What layers read besides the residual: each layer its own part of a token's further embedding.
typedef struct {
  int64_t size;             // size of a layer's part; 0: there is none
  int64_t num_tokens;       // tokens with a row in it; later tokens use the first one's
  const void* embedding;    // [num_tokens][layers * size], packed
  int32_t bits;             // form of the embedding
  HearthLinear projection;  // [layers * size][hidden]: its map of the usual embedding is added
  const float* norm;        // [size] for each part of the projection
} HearthLayerInputs;

// Alternating updates: the residual has several streams. The first begins as the embedding, the
// others as products of it. At the end the others are multiplied back, and the head reads the mean
// of all. Products are scaled to the size of the first stream.
typedef struct {
  int64_t count;     // at most kMaxStreams; 0: the residual has one
  HearthLinear in;   // [(count - 1) * hidden][hidden]
  HearthLinear out;  // like `in`; each stream has its own [hidden][hidden]
} HearthStreams;

// How experts are chosen: see MixtureConfig in loading/.
typedef struct {
  int64_t experts_per_token;
  int64_t num_groups;  // 1: all experts are in one group
  int64_t groups_per_token;
  int64_t num_scored;  // 1 or 2
  float scale;         // factor of all shares
  float least_sum;     // added to the sum that shares are divided by
  int32_t is_sigmoid;
  int32_t is_renormalised;  // the shares of a token's experts sum to one
} HearthMixture;

// A decoder: see ModelConfig in loading/ for the meaning of fields. Enumerations have the numbers
// of kernels.h.
typedef struct {
  const HearthLayer* layers;
  const void* embedding;  // [vocab][hidden], packed; a tied head has the same
  HearthNorm final_norm;
  HearthLinear head;
  int64_t num_layers;
  int64_t hidden;
  int64_t num_heads;
  HearthPages pages;
  HearthRecurrentRows recurrent;
  int32_t bits;  // form of weights other than routers and files' forms; decides that of activations
  int32_t embedding_bits;
  int32_t cache_type;
  int32_t norm;
  int32_t activation;
  int32_t is_gated;
  int32_t is_parallel;
  int32_t is_qk_norm_whole;  // all query heads are normalised as one, and all key heads
  int32_t is_qk_norm_last;   // queries and keys are turned, then normalised
  int32_t has_value_norm;    // each head of values is normalised, without a weight
  int32_t has_output_gates;  // attention's outputs are multiplied by sigmoids of gates
  float norm_eps;
  float attention_scale;
  float embedding_multiplier;
  float residual_multiplier;
  float logits_divisor;
  float logits_softcap;  // c: logits become c tanh(logits / c); 0: they stay as they are
  float swiglu_limit;    // see SwiGlu; 0: gates use the activation
  float swiglu_alpha;
  HearthMixture mixture;  // for layers with a router
  HearthLayerInputs inputs;
  HearthStreams streams;
} HearthModel;

// Tokens of any user rows; the tokens of a row are in order. Without a tree, a token at a position
// follows all slots before it. In a tree, branches share positions, so a token's slot may differ
// from its position. It follows the slots before the tree, and the branch of its parent.
typedef struct {
  const int64_t* ids;  // [tokens], like all arrays but outputs and the results
  const int64_t* rows;
  const int64_t* positions;
  const int64_t* slots;    // where keys and values are written
  const int64_t* parents;  // indices of earlier tokens, -1: none; null if slots are positions
  const int64_t* outputs;  // [outputs] indices of tokens, ascending
  int64_t num_tokens;
  int64_t num_outputs;
  float* logits;  // result [outputs][vocab], for the next token after each output
  float* hidden;  // result [tokens][hidden], after the final norm; or null
  // If several processes share the layers: the residual before these layers, [tokens][hidden], or
  // null to take the embedding; and the residual after them, a result of the same shape, or null.
  const float* before;
  float* after;
} HearthBatch;

// Writes the keys and values of the tokens, and computes the results.
HEARTH_EXPORT int hearth_step(HearthContext* context, const HearthModel* model,
                              const HearthBatch* batch);

// Applies the first `count` guesses of a row's last step to its state.
HEARTH_EXPORT int hearth_keep(HearthContext* context, const HearthModel* model, int64_t row,
                              int64_t count);

// Heads that guess tokens from a model's hidden state: see engine/cpu/medusa.py. Later layer i
// [hidden][hidden] belongs to head i % num_heads.
typedef struct {
  HearthLinear first;         // [heads * hidden][hidden]: the first layer of all heads
  const HearthLinear* later;  // [num_later], or null
  const HearthLinear*
      outputs;  // [num_outputs] of [tokens][hidden]: one for all heads, or each one's
  int64_t num_heads;
  int64_t num_later;
  int64_t num_outputs;
  int64_t num_ranks;  // tokens to find for each head, at most its outputs
  float logits_divisor;
  float logits_softcap;  // like the model's
} HearthHeads;

// Finds each head's likeliest tokens from `hidden` [rows][hidden]. Writes `tokens`
// [rows][heads][ranks], best first, as indices of outputs, and their `probabilities`.
HEARTH_EXPORT int hearth_guess(HearthContext* context, const HearthHeads* heads,
                               const float* hidden, int64_t rows, int64_t* tokens,
                               float* probabilities);
// NOLINTEND(modernize-use-using)
