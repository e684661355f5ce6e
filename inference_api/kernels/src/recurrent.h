// Layers that remember one state for each row, instead of keys and values of all its tokens.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "interface.h"
#include "kernels.h"
#include "workers.h"

namespace hearth {

// A row's tokens change its state one after another. Neither other rows in the step nor the way in
// which a prompt is cut changes a bit. The memory of one step is kept for the next.
class Recurrent {
 public:
  // Takes the tokens of a part of a batch, before `run` is called for every layer.
  void begin(Workers& workers, const HearthModel& model, const int64_t* rows,
             const int64_t* positions, int64_t num_tokens);
  // Runs the layer's mixer on `normed` [tokens][hidden / kGroup], and writes `out`
  // [tokens][layer.recurrent.out.inputs]. `exact` has the input as floats, only for delta rules.
  void run(Workers& workers, const HearthModel& model, const HearthLayer& layer, const char* normed,
           const char* exact, float* out);
  // See hearth_keep.
  void keep(Workers& workers, const HearthModel& model, int64_t row, int64_t count);

 private:
  // Consecutive tokens of one row.
  struct Run {
    float* block;  // state of the row
    float* log;
    int64_t first;
    int64_t count;
    int64_t kept;  // tokens after these are guesses
    int64_t wave;  // number of runs of the same row before it in the step
  };

  // Calls work(runs, count) for runs that do not depend on each other, one wave after another.
  template <class Work>
  void each_wave(const Work& work) const {
    for (size_t first = 0; first < runs_.size();) {
      size_t end = first;
      while (end < runs_.size() && runs_[end].wave == runs_[first].wave) {
        ++end;
      }
      work(runs_.data() + first, static_cast<int64_t>(end - first));
      first = end;
    }
  }

  void multiply_latents(Workers& workers, const HearthModel& model, const HearthRecurrent& layer);
  void mix(Workers& workers, const HearthRecurrent& layer, float* out);
  void write_log(Workers& workers, const HearthModel& model, const HearthRecurrent& layer);
  void run_short_conv(Workers& workers, const HearthRecurrent& layer, float* out);
  void run_delta(Workers& workers, const HearthRecurrent& layer, float* out);
  void move_tail(const HearthRecurrent& layer, const Run& run) const;

  std::vector<Run> runs_;        // by wave
  std::vector<float> mixed_;     // [tokens][outputs of `in`, then of `gates` and `forgets`]
  std::vector<float> steps_;     // [tokens][outputs of `steps`]
  std::vector<char> latents_;    // latents in steps_, in the form that products take
  std::vector<float> replayed_;  // outputs of kept guesses, which are not used again
  int64_t num_tokens_ = 0;
  bool has_guesses_ = false;
};

}  // namespace hearth
