#include "experts.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <numeric>

#include "activation.h"
#include "grow.h"
#include "largest.h"
#include "model_calls.h"

namespace hearth {
namespace {

constexpr int64_t kMaxRows = 4096;  // rows of experts at once: bounds the memory

// Returns the layer's own norm, or the MLP's if it has none.
HearthNorm norm_of(const HearthLayer& layer, HearthNorm own) {
  return own.weight == nullptr ? layer.mlp_norm : own;
}

// Returns the sum that a token's scores are divided by.
float total_of(const HearthMixture& mixture, const float* scores, int64_t num_experts,
               const int64_t* chosen) {
  if (mixture.is_renormalised) {
    float total = mixture.least_sum;
    for (int64_t rank = 0; rank < mixture.experts_per_token; ++rank) {
      total += scores[chosen[rank]];
    }
    return total;
  }
  return mixture.is_sigmoid ? 1.0f : std::accumulate(scores, scores + num_experts, 0.0f);
}

// Sets the preferences of experts outside the best groups to minus infinity. `scores` and `best`
// are memory for all groups' scores, and for the best groups.
void keep_best_groups(const HearthMixture& mixture, int64_t num_experts, float* preferences,
                      float* scores, int64_t* best) {
  const int64_t size = num_experts / mixture.num_groups;
  for (int64_t group = 0; group < mixture.num_groups; ++group) {
    float best_two[] = {-INFINITY, -INFINITY};
    for (int64_t expert = group * size; expert < (group + 1) * size; ++expert) {
      const float preference = preferences[expert];
      best_two[1] = std::max(best_two[1], std::min(best_two[0], preference));
      best_two[0] = std::max(best_two[0], preference);
    }
    scores[group] = best_two[0] + (mixture.num_scored > 1 ? best_two[1] : 0.0f);
  }
  find_largest(scores, mixture.num_groups, mixture.groups_per_token, best);
  for (int64_t group = 0; group < mixture.num_groups; ++group) {
    if (std::find(best, best + mixture.groups_per_token, group) ==
        best + mixture.groups_per_token) {
      std::fill_n(preferences + group * size, size, -INFINITY);
    }
  }
}

}  // namespace

void Experts::run(Workers& workers, const HearthModel& model, const HearthLayer& layer,
                  const float* hidden, int64_t num_tokens, float* out) {
  const int64_t most = std::max<int64_t>(kMaxRows / model.mixture.experts_per_token, 1);
  for (int64_t first = 0; first < num_tokens; first += most) {
    const int64_t at = first * model.hidden;
    run_part(workers, model, layer, hidden + at, std::min(num_tokens - first, most), out + at);
  }
}

void Experts::run_part(Workers& workers, const HearthModel& model, const HearthLayer& layer,
                       const float* hidden, int64_t num_tokens, float* out) {
  const int64_t num_rows = num_tokens * model.mixture.experts_per_token;
  const int64_t row = row_bytes(model, model.hidden);
  grow(floats_, num_tokens * model.hidden);
  grow(normed_, num_tokens * row);
  const NormCall norm = norm_call(model, norm_of(layer, layer.experts_norm));
  NormCall exact = norm_call(model, norm_of(layer, layer.router_norm));
  exact.bits = Bits::kFloat32;
  workers.each_row(num_tokens, [&](int64_t token) {
    const float* const x = hidden + token * model.hidden;
    workers.kernels.norm_row(exact, x, floats_.data() + token * model.hidden);
    workers.kernels.norm_row(norm, x, normed_.data() + token * row);
  });
  choose(workers, model, layer, num_tokens);
  ends_.assign(static_cast<size_t>(layer.router.outputs), 0);
  sort(model, num_tokens);
  grow(activated_, num_rows * row_bytes(model, layer.down.inputs));
  const int64_t latent = layer.latent_down.outputs;
  if (latent == 0) {
    gather(workers, num_rows, row);
    describe(model, layer, model.residual_multiplier, out);
    workers.multiply(ups_);
    workers.multiply_in_order(downs_);
    return;
  }
  grow(latents_, num_tokens * latent);
  workers.multiply(linear_call(model, layer.latent_down, normed_.data(), num_tokens, Finish::kStore,
                               1.0f, latents_.data()));
  workers.prepare(bits(model), latents_.data(), latent, num_tokens, normed_);
  gather(workers, num_rows, row_bytes(model, latent));
  std::fill_n(latents_.data(), num_tokens * latent, 0.0f);
  describe(model, layer, 1.0f, latents_.data());
  workers.multiply(ups_);
  workers.multiply_in_order(downs_);
  workers.prepare(bits(model), latents_.data(), latent, num_tokens, normed_);
  workers.multiply(linear_call(model, layer.latent_up, normed_.data(), num_tokens, Finish::kAdd,
                               model.residual_multiplier, out));
}

void Experts::choose(Workers& workers, const HearthModel& model, const HearthLayer& layer,
                     int64_t num_tokens) {
  const HearthMixture& mixture = model.mixture;
  const int64_t num_experts = layer.router.outputs;
  const int64_t num_chosen = mixture.experts_per_token;
  grow(logits_, num_tokens * num_experts);
  grow(scores_, num_tokens * num_experts);
  grow(chosen_, num_tokens * num_chosen);
  grow(chosen_shares_, num_tokens * num_chosen);
  grow(group_scores_, num_tokens * mixture.num_groups);
  grow(groups_, num_tokens * mixture.groups_per_token);
  const LinearCall router = linear_call(model, layer.router, floats_.data(), num_tokens,
                                        Finish::kStore, 1.0f, logits_.data());
  workers.multiply(router);
  workers.each_row(num_tokens, [&](int64_t token) {
    float* const preferences = logits_.data() + token * num_experts;  // decide the choice
    float* const scores = scores_.data() + token * num_experts;
    int64_t* const chosen = chosen_.data() + token * num_chosen;
    float* const shares = chosen_shares_.data() + token * num_chosen;
    if (mixture.is_sigmoid) {
      for (int64_t expert = 0; expert < num_experts; ++expert) {
        scores[expert] = sigmoid<Scalar>(preferences[expert]);
      }
    } else {
      const float largest = workers.kernels.largest_of(preferences, num_experts);
      workers.kernels.weigh(preferences, num_experts, largest, 1.0f, scores);
      if (layer.selection_bias != nullptr) {  // it is added to probabilities
        const float total = std::accumulate(scores, scores + num_experts, 0.0f);
        std::transform(scores, scores + num_experts, scores, [&](float x) { return x / total; });
      }
    }
    if (layer.selection_bias != nullptr) {
      for (int64_t expert = 0; expert < num_experts; ++expert) {
        preferences[expert] = scores[expert] + layer.selection_bias[expert];
      }
    } else if (mixture.num_groups > 1 && mixture.num_scored > 1) {  // groups compare sums of scores
      std::copy_n(scores, num_experts, preferences);
    }
    if (mixture.num_groups > 1) {
      keep_best_groups(mixture, num_experts, preferences,
                       group_scores_.data() + token * mixture.num_groups,
                       groups_.data() + token * mixture.groups_per_token);
    }
    find_largest(preferences, num_experts, num_chosen, chosen);
    const float total = total_of(mixture, scores, num_experts, chosen);
    for (int64_t rank = 0; rank < num_chosen; ++rank) {
      shares[rank] = scores[chosen[rank]] / total * mixture.scale;
      if (layer.expert_scales != nullptr) {
        shares[rank] *= layer.expert_scales[chosen[rank]];
      }
    }
  });
}

// Sorts rows by counting, so that an expert's rows are in the order of their tokens.
void Experts::sort(const HearthModel& model, int64_t num_tokens) {
  const int64_t num_chosen = model.mixture.experts_per_token;
  const int64_t num_rows = num_tokens * num_chosen;
  grow(places_, num_rows);
  grow(shares_, num_rows);
  for (int64_t i = 0; i < num_rows; ++i) {
    ++ends_[static_cast<size_t>(chosen_[static_cast<size_t>(i)])];
  }
  int64_t before = 0;
  for (int64_t& end : ends_) {  // at first, the begin of each expert's rows
    const int64_t count = end;
    end = before;
    before += count;
  }
  for (int64_t i = 0; i < num_rows; ++i) {
    const auto from = static_cast<size_t>(i);
    const auto to = static_cast<size_t>(ends_[static_cast<size_t>(chosen_[from])]++);
    places_[to] = i / num_chosen;
    shares_[to] = chosen_shares_[from];
  }
}

// Copies the tokens' rows, of `row` bytes each, to rows_.
void Experts::gather(Workers& workers, int64_t num_rows, int64_t row) {
  grow(rows_, num_rows * row);
  workers.each_row(num_rows, [&](int64_t i) {
    std::memcpy(rows_.data() + i * row, normed_.data() + places_[static_cast<size_t>(i)] * row,
                static_cast<size_t>(row));
  });
}

void Experts::describe(const HearthModel& model, const HearthLayer& layer, float factor,
                       float* out) {
  ups_.clear();
  downs_.clear();
  const int64_t num_experts = layer.router.outputs;
  const int64_t row = row_bytes(model, layer.up.inputs);
  const int64_t activated_row = row_bytes(model, layer.down.inputs);
  int64_t begin = 0;
  for (int64_t expert = 0; expert < num_experts; ++expert) {
    const int64_t count = ends_[static_cast<size_t>(expert)] - begin;
    if (count == 0) {
      continue;
    }
    char* const activated = activated_.data() + begin * activated_row;
    LinearCall up =
        linear_call(model, one_of(layer.up, num_experts, expert), rows_.data() + begin * row, count,
                    Finish::kActivate, 1.0f, nullptr);
    up.is_gated = model.is_gated != 0;
    up.activated = activated;
    ups_.push_back(up);
    LinearCall down = linear_call(model, one_of(layer.down, num_experts, expert), activated, count,
                                  Finish::kAdd, factor, out);
    down.places = places_.data() + begin;
    down.shares = shares_.data() + begin;
    downs_.push_back(down);
    begin += count;
  }
}

}  // namespace hearth
