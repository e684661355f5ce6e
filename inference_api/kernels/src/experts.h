// The experts of a layer over some tokens: what Mixture in engine/mlp.py does.
#pragma once

#include <cstdint>
#include <vector>

#include "interface.h"
#include "kernels.h"
#include "workers.h"

namespace hearth {

// Rows, of which each token has one for each of its experts, are sorted by expert, so that an
// expert's panels are read once for all its rows; experts without rows are not read. What a token's
// experts make is added in the order of their numbers: neither the token's company nor the number
// of threads changes a bit.
//
// Memory of a step, kept for the next one.
class Experts {
 public:
  // Adds to `out` [num_tokens][hidden] what the layer's experts make of the norm of the residual
  // `hidden`, which may be the same.
  void run(Workers& workers, const HearthModel& model, const HearthLayer& layer,
           const float* hidden, int64_t num_tokens, float* out);

 private:
  void run_part(Workers& workers, const HearthModel& model, const HearthLayer& layer,
                const float* hidden, int64_t num_tokens, float* out);
  void choose(Workers& workers, const HearthModel& model, const HearthLayer& layer,
              int64_t num_tokens);
  void sort(const HearthModel& model, int64_t num_tokens);
  void gather(Workers& workers, int64_t num_rows, int64_t row);
  void describe(const HearthModel& model, const HearthLayer& layer, float factor, float* out);
  void prepare_latents(Workers& workers, const HearthModel& model, int64_t size,
                       int64_t num_tokens);

  std::vector<float> floats_;        // [tokens][hidden]: the norm, for the router
  std::vector<char> normed_;         // [tokens][… / kGroup]: the same, for the experts, or latents_
  std::vector<float> latents_;       // [tokens][size]: what the experts read, then what they make
  std::vector<float> logits_;        // [tokens][experts] of the router
  std::vector<float> scores_;        // [tokens][experts]: their powers or sigmoids
  std::vector<float> group_scores_;  // [tokens][groups]
  std::vector<int64_t> groups_;      // [tokens][groups_per_token]: the best
  std::vector<int64_t> chosen_;      // [tokens][experts_per_token]
  std::vector<float> chosen_shares_;  // like chosen_
  std::vector<int64_t> ends_;         // [experts] of their rows
  std::vector<int64_t> places_;       // [rows]: their tokens
  std::vector<float> shares_;         // [rows]
  std::vector<char> rows_;            // [rows][hidden / kGroup]
  std::vector<char> activated_;       // [rows][ffn / kGroup]
  std::vector<LinearCall> ups_;       // of experts that have rows
  std::vector<LinearCall> downs_;
};

}  // namespace hearth
