#include "guess.h"

#include "activation.h"
#include "largest.h"
#include "model_calls.h"
#include "soften.h"

namespace hearth {
namespace {

float silu(float x) { return activated<Scalar>(Activation::kSilu, x); }

}  // namespace

void Guess::run(Workers& workers, const HearthHeads& heads, const float* hidden, int64_t num_rows,
                int64_t* tokens, float* probabilities) {
  const int64_t width = heads.first.inputs;
  const int64_t num_states = heads.num_heads * num_rows;
  states_.resize(static_cast<size_t>(num_states * width));
  inner_.resize(static_cast<size_t>(num_states * width));
  multiply_floats(workers, heads.first, hidden, num_rows, prepared_, inner_.data());
  workers.each_row(num_states, [&](int64_t state) {
    const int64_t head = state / num_rows;
    const int64_t row = state % num_rows;
    const float* const inner = inner_.data() + (row * heads.num_heads + head) * width;
    for (int64_t i = 0; i < width; ++i) {
      states_[static_cast<size_t>(state * width + i)] = hidden[row * width + i] + silu(inner[i]);
    }
  });
  for (int64_t later = 0; later < heads.num_later; ++later) {
    float* const states = states_.data() + later % heads.num_heads * num_rows * width;
    multiply_floats(workers, heads.later[later], states, num_rows, prepared_, inner_.data());
    for (int64_t i = 0; i < num_rows * width; ++i) {
      states[i] += silu(inner_[static_cast<size_t>(i)]);
    }
  }
  const int64_t vocab = heads.outputs[0].outputs;
  logits_.resize(static_cast<size_t>(num_states * vocab));
  weights_.resize(logits_.size());
  const int64_t rows_each = num_states / heads.num_outputs;
  for (int64_t output = 0; output < heads.num_outputs; ++output) {
    const int64_t first = output * rows_each;
    multiply_floats(workers, heads.outputs[output], states_.data() + first * width, rows_each,
                    prepared_, logits_.data() + first * vocab);
  }
  workers.each_row(num_states, [&](int64_t state) {
    const int64_t place = (state % num_rows * heads.num_heads + state / num_rows) * heads.num_ranks;
    float* const logits = logits_.data() + state * vocab;
    float* const weights = weights_.data() + state * vocab;
    find_largest(logits, vocab, heads.num_ranks, tokens + place);
    if (heads.logits_softcap != 0.0f) {  // logits are not divided here, so the cap is multiplied
      soften(logits, vocab, heads.logits_softcap * heads.logits_divisor);
    }
    workers.kernels.weigh(logits, vocab, logits[tokens[place]], heads.logits_divisor, weights);
    float total = 0.0f;
    for (int64_t token = 0; token < vocab; ++token) {
      total += weights[token];
    }
    for (int64_t rank = 0; rank < heads.num_ranks; ++rank) {
      probabilities[place + rank] = weights[tokens[place + rank]] / total;
    }
  });
}

}  // namespace hearth
