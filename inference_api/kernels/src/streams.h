// Alternating updates (Baykal et al. 2023, arXiv 2301.13310): the residual is several streams, of
// which each layer computes the first, and guesses what it would have done to the others. See
// HearthStreams and HearthAltUp.
#pragma once

#include <cstdint>
#include <vector>

#include "interface.h"
#include "workers.h"

namespace hearth {

constexpr int64_t kMaxStreams = 8;  // MAX_STREAMS in packing.py

// An embedding or a head alone has none.
inline bool has_streams(const HearthModel& model) {
  return model.streams.count > 0 && model.num_layers > 0;
}

// Memory of a step, kept for the next one.
class Streams {
 public:
  // Makes the streams of tokens whose embeddings are `hidden`, and as products take them `rows`.
  void begin(Workers& workers, const HearthModel& model, const float* hidden, const char* rows,
             int64_t num_tokens);
  // Replaces the streams by what the layer is expected to make of them. The first one, which the
  // layer reads, is `hidden` too.
  void predict(Workers& workers, const HearthModel& model, const HearthLayer& layer, float* hidden,
               int64_t num_tokens);
  // Corrects them by what the layer has made of the first one, `hidden`, which becomes what the
  // layer's inputs are gated by.
  void correct(Workers& workers, const HearthModel& model, const HearthLayer& layer, float* hidden,
               int64_t num_tokens);
  // Adds what a layer has made of its inputs to all streams but the first.
  void add(Workers& workers, const HearthModel& model, const float* made, int64_t num_tokens);
  // Joins the streams in `hidden`.
  void end(Workers& workers, const HearthModel& model, float* hidden, int64_t num_tokens);
  // A token's streams go to where another's were.
  void move(const HearthModel& model, int64_t from, int64_t to);

 private:
  std::vector<float> streams_;  // [tokens][streams][hidden]
  std::vector<float> scratch_;  // [tokens][hidden]
  std::vector<char> rows_;      // [streams but the first][tokens][hidden / kGroup]
};

}  // namespace hearth
