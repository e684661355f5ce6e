// Alternating updates (Baykal et al. 2023, arXiv 2301.13310): the residual has several streams.
// Each layer computes the first, and guesses what it would have done to the others. See
// HearthStreams and HearthAltUp.
#pragma once

#include <cstdint>
#include <vector>

#include "interface.h"
#include "workers.h"

namespace hearth {

constexpr int64_t kMaxStreams = 8;  // MAX_STREAMS in packing.py

// Returns whether there are streams. A model with an embedding or a head alone has none.
inline bool has_streams(const HearthModel& model) {
  return model.streams.count > 0 && model.num_layers > 0;
}

// The streams of a step's tokens. The memory of one step is kept for the next.
class Streams {
 public:
  // Makes the streams of tokens from their embeddings, `hidden`; products take these as `rows`.
  void begin(Workers& workers, const HearthModel& model, const float* hidden, const char* rows,
             int64_t num_tokens);
  // Replaces the streams by the layer's expected results. Copies the first one, which the layer
  // reads, to `hidden`.
  void predict(Workers& workers, const HearthModel& model, const HearthLayer& layer, float* hidden,
               int64_t num_tokens);
  // Corrects the streams by the layer's result for the first one, `hidden`. Replaces that by the
  // vector that gates the layer's inputs.
  void correct(Workers& workers, const HearthModel& model, const HearthLayer& layer, float* hidden,
               int64_t num_tokens);
  // Adds a layer's result for its inputs, `made`, to all streams but the first.
  void add(Workers& workers, const HearthModel& model, const float* made, int64_t num_tokens);
  // Joins the streams in `hidden`.
  void end(Workers& workers, const HearthModel& model, float* hidden, int64_t num_tokens);
  // Moves a token's streams to the place of another token.
  void move(const HearthModel& model, int64_t from, int64_t to);

 private:
  std::vector<float> streams_;  // [tokens][streams][hidden]
  std::vector<float> scratch_;  // [tokens][hidden]
  std::vector<char> rows_;      // [streams but the first][tokens][hidden / kGroup]
};

}  // namespace hearth
