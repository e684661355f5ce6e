// What layers read of a token besides the residual: see HearthLayerInputs.
#pragma once

#include <cstdint>
#include <vector>

#include "interface.h"
#include "workers.h"

namespace hearth {

// Memory of a step, kept for the next one.
class LayerInputs {
 public:
  // Makes the inputs of tokens whose usual embeddings are `rows`, as products take them.
  void begin(Workers& workers, const HearthModel& model, const int64_t* ids, const char* rows,
             int64_t num_tokens);
  // A token's inputs go to where another's were.
  void move(const HearthModel& model, int64_t from, int64_t to);
  // Returns what the layer's `input_out` takes, of the residual `rows` and the tokens' inputs.
  const std::vector<char>& gated(Workers& workers, const HearthModel& model,
                                 const HearthLayer& layer, const char* rows, int64_t num_tokens);

 private:
  std::vector<float> inputs_;    // [tokens][layers][size]
  std::vector<float> embedded_;  // like inputs_
  std::vector<float> gates_;     // [tokens][size]
  std::vector<char> gated_;      // [tokens][size / kGroup]
};

}  // namespace hearth
