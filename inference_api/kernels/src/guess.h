// Heads that guess the tokens after a hidden state: see engine/cpu/medusa.py.
#pragma once

#include <cstdint>
#include <vector>

#include "interface.h"
#include "kernels.h"
#include "workers.h"

namespace hearth {

// Runs the heads, and keeps the memory of one guess for the next.
class Guess {
 public:
  // See hearth_guess.
  void run(Workers& workers, const HearthHeads& heads, const float* hidden, int64_t num_rows,
           int64_t* tokens, float* probabilities);

 private:
  std::vector<float> states_;   // [heads][rows][hidden]
  std::vector<float> inner_;    // [rows][heads * hidden], or one head's [rows][hidden]
  std::vector<float> logits_;   // [heads][rows][tokens]
  std::vector<float> weights_;  // like logits_: likelihoods relative to the likeliest token
  std::vector<char> prepared_;  // rows in the form that products take
};

}  // namespace hearth
