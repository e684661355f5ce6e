// Inputs that layers read besides the residual: see HearthLayerInputs.
#pragma once

#include <cstdint>
#include <vector>

#include "interface.h"
#include "workers.h"

namespace hearth {

// Computes these inputs, and keeps the memory of one step for the next.
class LayerInputs {
 public:
  // Makes the inputs of tokens. `rows` are their usual embeddings, in the form that products take.
  void begin(Workers& workers, const HearthModel& model, const int64_t* ids, const char* rows,
             int64_t num_tokens);
  // Moves a token's inputs to the place of another token.
  void move(const HearthModel& model, int64_t from, int64_t to);
  // Returns the input of the layer's `input_out`, from the residual `rows` and the tokens' inputs.
  const std::vector<char>& gated(Workers& workers, const HearthModel& model,
                                 const HearthLayer& layer, const char* rows, int64_t num_tokens);

 private:
  std::vector<float> inputs_;    // [tokens][layers][size]
  std::vector<float> embedded_;  // like inputs_
  std::vector<float> gates_;     // [tokens][size]
  std::vector<char> gated_;      // [tokens][size / kGroup]
};

}  // namespace hearth
