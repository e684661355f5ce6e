// Heads that guess what follows a hidden state, as engine/medusa.py describes them.
#pragma once

#include <cstdint>
#include <vector>

#include "interface.h"
#include "kernels.h"
#include "workers.h"

namespace hearth {

// Memory of a guess, kept for the next one.
class Guess {
 public:
  // See hearth_guess.
  void run(Workers& workers, const HearthHeads& heads, const float* hidden, int64_t num_rows,
           int64_t* tokens, float* probabilities);

 private:
  void multiply(Workers& workers, const HearthLinear& linear, const float* x, int64_t num_rows,
                float* out);

  std::vector<float> states_;   // [heads][rows][hidden]
  std::vector<float> inner_;    // [rows][heads * hidden], or one head's [rows][hidden]
  std::vector<float> logits_;   // [heads][rows][tokens]
  std::vector<float> weights_;  // like logits_: relative to the likeliest token
  std::vector<char> prepared_;  // rows as products take them
};

}  // namespace hearth
