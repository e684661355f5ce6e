// Layers that remember one state of a row instead of keys and values of all its tokens.
#pragma once

#include <cstdint>
#include <vector>

#include "interface.h"
#include "kernels.h"
#include "workers.h"

namespace hearth {

// A row's tokens go into its state one after another, whoever shares the step and however a prompt
// is cut: neither changes a bit. Memory of a step, kept for the next one.
class Recurrent {
 public:
  // The tokens of a part of a batch, for `run` of every layer.
  void begin(Workers& workers, const HearthModel& model, const int64_t* rows,
             const int64_t* positions, int64_t num_tokens);
  // What the layer's mixer makes of `normed` [tokens][hidden / kGroup]: `out`
  // [tokens][layer.out.inputs].
  void run(Workers& workers, const HearthModel& model, const HearthLayer& layer, const char* normed,
           float* out);

 private:
  // Consecutive tokens of one row.
  struct Run {
    float* block;  // of the row
    int64_t first;
    int64_t count;
  };

  std::vector<Run> runs_;
  std::vector<float> mixed_;  // [tokens][outputs of `in`]
  int64_t num_tokens_ = 0;
};

}  // namespace hearth
