// All layers of a decoder over some tokens, in one call: see engine/cpu/decoder.py.
#pragma once

#include <cstdint>
#include <vector>

#include "experts.h"
#include "interface.h"
#include "kernels.h"
#include "layer_inputs.h"
#include "recurrent.h"
#include "streams.h"
#include "workers.h"

namespace hearth {

// Runs steps, and keeps the memory of one for the next.
class Step {
 public:
  // See hearth_step. More tokens than kMaxTokens are handled in parts, with the same results.
  void run(Workers& workers, const HearthModel& model, const HearthBatch& batch);
  // See hearth_keep.
  void keep(Workers& workers, const HearthModel& model, int64_t row, int64_t count) {
    recurrent_.keep(workers, model, row, count);
  }

 private:
  // Tokens [first, first + count) of a batch, and its outputs among them. Unless `reads_all`, only
  // the outputs' results of the last layer are read.
  struct Part {
    const HearthBatch& batch;
    int64_t first;
    int64_t count;
    const int64_t* outputs;
    int64_t num_outputs;
    bool reads_all;
  };

  void run_part(Workers& workers, const HearthModel& model, const Part& part);
  int64_t run_layer(Workers& workers, const HearthModel& model, const HearthLayer& layer,
                    const Part& part, int64_t num_tokens, bool is_cut);
  void norm_rows(Workers& workers, const HearthModel& model, const HearthNorm& norm,
                 int64_t num_tokens, std::vector<char>& rows);
  void project(Workers& workers, const HearthModel& model, const HearthLayer& layer,
               int64_t num_tokens);
  void write(Workers& workers, const HearthModel& model, const HearthLayer& layer, const Part& part,
             int64_t num_tokens);
  void keep_outputs(const HearthModel& model, const HearthLayer& layer, const Part& part);
  void attend(Workers& workers, const HearthModel& model, const HearthLayer& layer,
              int64_t num_tokens);
  void absorb(Workers& workers, const HearthModel& model, const HearthLayer& layer,
              int64_t num_tokens);
  void make_values(Workers& workers, const HearthModel& model, const HearthLayer& layer,
                   int64_t num_tokens);
  void multiply_heads(Workers& workers, const HearthModel& model, const HearthLinear& stack,
                      int64_t num_tokens, int64_t outputs, float* out, int64_t out_dim);
  void add_laurel(Workers& workers, const HearthModel& model, const HearthLayer& layer,
                  int64_t num_tokens);
  void add_mixed(Workers& workers, const HearthModel& model, const HearthLayer& layer,
                 int64_t num_tokens);
  void add_mlp(Workers& workers, const HearthModel& model, const HearthLayer& layer,
               int64_t num_tokens);
  void cut_gates(Workers& workers, const HearthModel& model, const HearthLayer& layer,
                 const char* rows, int64_t num_tokens);
  void scale(Workers& workers, const HearthModel& model, float factor, int64_t num_tokens);
  void add_joined(Workers& workers, const HearthModel& model, const HearthLayer& layer,
                  int64_t num_tokens);
  void add_product(Workers& workers, const HearthModel& model, const HearthLinear& linear,
                   const std::vector<char>& rows, const HearthNorm& norm, int64_t num_rows,
                   const float* shares = nullptr);
  const char* exact_rows(Workers& workers, const HearthModel& model, const HearthNorm& norm,
                         const std::vector<char>& normed, int64_t num_tokens);
  const float* shared_shares(Workers& workers, const HearthModel& model, const HearthLayer& layer,
                             int64_t num_tokens);
  const Branch* find_branches(const Part& part);
  void write_logits(Workers& workers, const HearthModel& model, const Part& part, float* logits);
  void write_hidden(Workers& workers, const HearthModel& model, const Part& part);
  void reserve(const HearthModel& model, int64_t num_tokens);

  std::vector<float> hidden_;         // [tokens][hidden]: the residual, or the first of its streams
  std::vector<float> shares_;         // [tokens]: weight of the MLP beside the experts
  std::vector<float> product_;        // [tokens][hidden], normalised before it is added
  std::vector<float> gates_;          // [tokens][2 * ffn]: gates to be cut, then what they gate
  std::vector<float> of_experts_;     // like product_
  std::vector<float> qkv_;            // [tokens][queries_width, then keys and values]
  std::vector<float> query_latents_;  // [tokens][outputs of q_a]
  std::vector<float> absorbed_;       // [tokens][heads][key_dim]: queries for latents
  std::vector<float> attended_;       // [tokens][heads][value], or a mixer's outputs
  std::vector<float> values_;         // [tokens][heads * value_dim], made from latents
  std::vector<int64_t> rows_;         // [tokens]
  std::vector<int64_t> lengths_;      // [tokens]
  const Branch* branches_ = nullptr;  // [tokens] of the part, or null; in the next two
  std::vector<Branch> branch_memory_;
  std::vector<int64_t> branch_slots_;
  // Rows in the form that products take.
  std::vector<char> latent_rows_;  // [tokens][outputs of q_a / kGroup]
  std::vector<char> head_rows_;    // [heads][tokens][inputs of k_b or v_b / kGroup]
  std::vector<char> normed_;       // [tokens][hidden / kGroup], for attention
  std::vector<char> mlp_normed_;   // like normed_
  std::vector<char> prepared_;     // attended_, for the output projection
  std::vector<char> exact_;        // [tokens][hidden] of floats
  std::vector<char> activated_;    // [tokens][ffn / kGroup]
  Experts experts_;
  LayerInputs layer_inputs_;
  Streams streams_;
  Recurrent recurrent_;
};

}  // namespace hearth
