#include "draw.h"

#include <algorithm>
#include <cmath>
#include <vector>

namespace hearth {
namespace {

constexpr int64_t kBlock = 512;     // weights that are summed at once
constexpr int64_t kLanes = 8;       // sums that do not wait for each other
constexpr int64_t kBuckets = 2048;  // for tokens that are about as likely; the last has weights 0
constexpr float kLeastExponent = -87.0f;  // least exponent of a weight that is not 0
constexpr uint64_t kGoldenGamma = 0x9e3779b97f4a7c15;
constexpr int kDoubleBits = 53;

// Returns the output of SplitMix64's mixer: see engine/random_numbers.py.
uint64_t mixed(uint64_t z) {
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
  z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
  return z ^ (z >> 31);
}

// Returns a uniform number in (0, 1].
double uniform(uint64_t seed, uint64_t position) {
  const uint64_t bits = mixed(mixed(seed) + (position + 1) * kGoldenGamma);
  return static_cast<double>((bits >> (64 - kDoubleBits)) + 1) * std::ldexp(1.0, -kDoubleBits);
}

double sum(const float* weights, int64_t count) {
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t lane = 0; lane < kLanes; ++lane) {
      lanes[lane] += static_cast<double>(weights[i + lane]);
    }
  }
  for (int64_t lane = 0; i < count; ++i, ++lane) {
    lanes[lane] += static_cast<double>(weights[i]);
  }
  double total = 0.0;
  for (const double lane : lanes) {
    total += lane;
  }
  return total;
}

// The tokens before a place in the order: all tokens of some buckets, and the first tokens of one
// more, of which `last` is the last.
struct Cut {
  int64_t bucket;
  int64_t in_bucket;
  int64_t tokens;
  double weight;
  int64_t last;
};

// Tokens in order, the likeliest first. They are sorted into buckets, and within a bucket only if a
// cut or the drawn token lies there: sorting all would cost more than everything else.
class Order {
 public:
  Order(const float* logits, const float* weights, int64_t vocab, float largest, float temperature)
      : logits_(logits), weights_(weights), buckets_(static_cast<size_t>(vocab)) {
    for (int64_t token = 0; token < vocab; ++token) {
      const float exponent = (logits[token] - largest) / temperature;
      const float place = exponent * (static_cast<float>(kBuckets - 1) / kLeastExponent);
      const bool has_weight = place < static_cast<float>(kBuckets - 1);
      const auto bucket = has_weight ? static_cast<int64_t>(place) : kBuckets - 1;
      buckets_[static_cast<size_t>(token)] = static_cast<uint16_t>(bucket);
      ++counts_[bucket];
      sums_[bucket] += has_weight ? static_cast<double>(weights[token]) : 0.0;
    }
  }

  Cut whole() const {
    Cut cut = {kBuckets, 0, static_cast<int64_t>(buckets_.size()), 0.0, 0};
    for (const double each : sums_) {
      cut.weight += each;
    }
    return cut;
  }

  // Returns the first `count` tokens of a cut.
  Cut first(int64_t count, const Cut& of) const {
    if (count >= of.tokens) {
      return of;
    }
    Cut cut = {};
    while (cut.tokens + counts_[cut.bucket] <= count) {
      add_bucket(cut);
    }
    for (const int64_t token : members(cut.bucket, count - cut.tokens)) {
      add_token(cut, token);
    }
    return cut;
  }

  // Returns the tokens of a cut before which there is less than `weight`, which is above 0 and at
  // most the cut's weight. That was summed in the same order, so the last token is always found.
  Cut lighter(double weight, const Cut& of) const {
    Cut cut = {};
    while (cut.weight + sums_[cut.bucket] < weight && cut.bucket < of.bucket) {
      add_bucket(cut);
    }
    const int64_t limit = cut.bucket < of.bucket ? counts_[cut.bucket] : of.in_bucket;
    for (const int64_t token : members(cut.bucket, limit)) {
      if (cut.weight >= weight) {
        break;
      }
      add_token(cut, token);
    }
    return cut;
  }

 private:
  void add_bucket(Cut& cut) const {
    cut.tokens += counts_[cut.bucket];
    cut.weight += sums_[cut.bucket];
    ++cut.bucket;
  }

  void add_token(Cut& cut, int64_t token) const {
    ++cut.in_bucket;
    ++cut.tokens;
    cut.weight += static_cast<double>(weights_[token]);
    cut.last = token;
  }

  // Returns the first `limit` tokens of a bucket.
  std::vector<int64_t> members(int64_t bucket, int64_t limit) const {
    std::vector<int64_t> tokens;
    tokens.reserve(static_cast<size_t>(counts_[bucket]));
    for (size_t token = 0; token < buckets_.size(); ++token) {
      if (buckets_[token] == bucket) {
        tokens.push_back(static_cast<int64_t>(token));
      }
    }
    const auto end = tokens.begin() + limit;
    std::partial_sort(tokens.begin(), end, tokens.end(), [this](int64_t a, int64_t b) {
      return logits_[a] != logits_[b] ? logits_[a] > logits_[b] : a < b;
    });
    tokens.resize(static_cast<size_t>(limit));
    return tokens;
  }

  const float* logits_;
  const float* weights_;
  std::vector<uint16_t> buckets_;  // by token
  int64_t counts_[kBuckets] = {};
  double sums_[kBuckets] = {};
};

// Returns the token at which the running weight, in the order of ids, reaches `share` of the sum.
int64_t draw_by_id(const std::vector<float>& weights, double share) {
  const auto vocab = static_cast<int64_t>(weights.size());
  const double target = share * sum(weights.data(), vocab);
  double weight = 0.0;
  int64_t found = 0;
  for (int64_t first = 0; first < vocab; first += kBlock) {
    const int64_t count = std::min(kBlock, vocab - first);
    const double block = sum(weights.data() + first, count);
    const bool is_last = first + count == vocab;
    if (weight + block < target && !is_last) {
      weight += block;
      continue;
    }
    for (int64_t token = first; token < first + count && weight < target; ++token) {
      const auto each = static_cast<double>(weights[static_cast<size_t>(token)]);
      weight += each;
      found = each > 0.0 ? token : found;
    }
    if (weight >= target) {
      break;
    }
  }
  return found;
}

}  // namespace

int64_t draw(const Kernels& kernels, const float* logits, int64_t vocab, const HearthDraw& how) {
  const float largest = kernels.largest_of(logits, vocab);
  if (how.temperature == 0.0 || !std::isfinite(largest)) {
    const float* found = std::find(logits, logits + vocab, largest);
    return found == logits + vocab ? 0 : found - logits;
  }
  const double number = uniform(how.seed, how.position);
  std::vector<float> weights(static_cast<size_t>(vocab));
  const auto temperature = static_cast<float>(how.temperature);
  kernels.weigh(logits, vocab, largest, temperature, weights.data());
  const auto is_likely = [&how](float weight) { return static_cast<double>(weight) >= how.min_p; };
  if (how.top_k <= 0 && how.top_p >= 1.0) {
    for (float& weight : weights) {
      weight = is_likely(weight) ? weight : 0.0f;
    }
    return draw_by_id(weights, number);
  }
  const Order order(logits, weights.data(), vocab, largest, temperature);
  Cut cut = order.whole();
  if (how.top_k > 0) {
    cut = order.first(how.top_k, cut);
  }
  if (how.top_p < 1.0) {
    cut = order.lighter(how.top_p * cut.weight, cut);
  }
  if (how.min_p > 0.0) {
    cut = order.first(std::count_if(weights.begin(), weights.end(), is_likely), cut);
  }
  return order.lighter(number * cut.weight, cut).last;  // inverts the running weight
}

}  // namespace hearth
