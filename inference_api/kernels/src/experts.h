// The experts of a layer over some tokens, like Mixture in engine/cuda/mlp.py.
#pragma once

#include <cstdint>
#include <vector>

#include "interface.h"
#include "kernels.h"
#include "workers.h"

namespace hearth {

// A token has a row for each of its experts. Rows are sorted by expert, so that an expert's panels
// are read once for all of its rows; experts without rows are not read. The results of a token's
// experts are added in the order of their numbers, so that neither other tokens nor the number of
// threads changes a bit.
//
// The memory of one step is kept for the next.
class Experts {
 public:
  // Runs the layer's experts on the norm of the residual `hidden`, and adds their results to `out`
  // [num_tokens][hidden], which may be the same memory.
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

  std::vector<float> floats_;        // [tokens][hidden]: the norm, for the router
  std::vector<char> normed_;         // [tokens][… / kGroup]: the same, or latents_, for the experts
  std::vector<float> latents_;       // [tokens][size]: the experts' inputs, then their outputs
  std::vector<float> logits_;        // [tokens][experts] of the router
  std::vector<float> scores_;        // [tokens][experts]: exponentials or sigmoids of logits
  std::vector<float> group_scores_;  // [tokens][groups]
  std::vector<int64_t> groups_;      // [tokens][groups_per_token]: the best groups
  std::vector<int64_t> chosen_;      // [tokens][experts_per_token]
  std::vector<float> chosen_shares_;  // like chosen_
  std::vector<int64_t> ends_;         // [experts]: the end of each expert's rows
  std::vector<int64_t> places_;       // [rows]: the token of each row
  std::vector<float> shares_;         // [rows]
  std::vector<char> rows_;            // [rows][hidden / kGroup]
  std::vector<char> activated_;       // [rows][ffn / kGroup]
  std::vector<LinearCall> ups_;       // for experts that have rows
  std::vector<LinearCall> downs_;
};

}  // namespace hearth
