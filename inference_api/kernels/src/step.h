// All layers of a decoder over some tokens: what engine/decoder.py does, in one call.
#pragma once

#include <cstdint>
#include <vector>

#include "interface.h"
#include "kernels.h"
#include "workers.h"

namespace hearth {

// The tokens of a step: at most kMaxTokens, those of a cache row in their order.
struct Tokens {
  const int64_t* ids;
  const int64_t* rows;
  const int64_t* positions;
  int64_t count;
};

// Memory of a step, kept for the next one.
class Step {
 public:
  // Writes the keys and values of `tokens`; logits [num_outputs][vocab] for what follows the last
  // of them. More tokens than kMaxTokens are taken in parts, which leaves the results as they are.
  void run(Workers& workers, const HearthModel& model, Tokens tokens, int64_t num_outputs,
           float* logits);

 private:
  void run_part(Workers& workers, const HearthModel& model, const Tokens& tokens);
  void run_layer(Workers& workers, const HearthModel& model, const HearthLayer& layer,
                 const Tokens& tokens);
  void attend(Workers& workers, const HearthModel& model, const HearthLayer& layer,
              const Tokens& tokens);
  void reserve(const HearthModel& model, int64_t num_tokens);

  std::vector<float> hidden_;     // [tokens][hidden]: the residual
  std::vector<float> qkv_;        // [tokens][(heads + 2 kv_heads) * head_dim]
  std::vector<float> attended_;   // [tokens][heads * head_dim]
  std::vector<int64_t> lengths_;  // [tokens]
  // Rows of groups as products take them.
  std::vector<char> normed_;      // [tokens][hidden / kGroup], for attention
  std::vector<char> mlp_normed_;  // like normed_
  std::vector<char> prepared_;    // [tokens][heads * head_dim / kGroup]: attended_
  std::vector<char> activated_;   // [tokens][ffn / kGroup]
};

}  // namespace hearth
