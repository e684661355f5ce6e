// Runs every kernel of every variant of this processor on awkward shapes and compares with plain
// loops in double precision: for sanitizers, see sanitize.py. All memory is of exactly the size the
// interface asks for, so that a step beyond it is seen.
#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <list>
#include <random>
#include <vector>

#include "interface.h"
#include "test_bits.h"

namespace {

constexpr int kThreads = 3;
constexpr int kFloat32 = 0;
constexpr int kInt8Cache = 2;
constexpr int kInt4Cache = 3;
constexpr int kDelta = 2;
constexpr int kKimiDelta = 4;
constexpr int64_t kPageTokens = 32;
constexpr int64_t kPanel = 32;
constexpr int kNvFp4 = 140;

// Forms that nothing is packed to: inputs of a block; and what the blocks of a panel begin with,
// which is about 2^-10: so many halves, or pairs of bytes that are exponents.
struct FileForm {
  int bits;
  int64_t inputs;
  int64_t num_units;
  int unit = 0x1400;
  int unit_noise = 0x03ff;
};
constexpr FileForm kFileForms[] = {{103, 32, 64},
                                   {106, 32, 32},
                                   {107, 32, 64},
                                   {110, 256, 64},
                                   {111, 256, 32},
                                   {112, 256, 64},
                                   {113, 256, 64},
                                   {114, 256, 32},
                                   {116, 256, 32},
                                   {117, 256, 32},
                                   {118, 256, 32},
                                   {119, 256, 32},
                                   {120, 32, 32},
                                   {121, 256, 32},
                                   {122, 256, 32},
                                   {123, 256, 32},
                                   {129, 256, 128, 0x1000, 0x0fff},
                                   {139, 32, 16, 0x7474, 0x0101},
                                   {140, 64, 64, 0x2020, 0x0707}};

int num_failures = 0;

std::vector<float> random_floats(int64_t count) {
  static std::mt19937 generator(0);  // NOLINT(bugprone-random-generator-seed): alike in every run
  return random_floats(count, generator);
}

void expect(bool is_true, const char* what, int variant) {
  if (!is_true) {
    std::printf("%s: %s\n", hearth_variant_name(variant), what);
    ++num_failures;
  }
}

std::vector<uint8_t> random_blocks(const FileForm& form, int64_t size) {
  static std::mt19937 generator(2);  // NOLINT(bugprone-random-generator-seed): alike in every run
  std::vector<uint8_t> blocks(static_cast<size_t>(size));
  for (uint8_t& byte : blocks) {
    byte = static_cast<uint8_t>(generator());
  }
  const int64_t block_bytes = hearth_packed_bytes(form.bits, 1, form.inputs);
  for (int64_t block = 0; block < size; block += block_bytes) {
    for (int64_t index = 0; index < form.num_units; ++index) {
      const auto unit = static_cast<uint16_t>(form.unit | (generator() & form.unit_noise));
      std::memcpy(blocks.data() + block + index * 2, &unit, sizeof unit);
    }
  }
  if (form.bits == kNvFp4) {  // bit i of a factor is in the sign of a scale
    constexpr uint32_t kOneAndAHalf = 0x3fc00000;
    for (int64_t i = 0; i < size; ++i) {
      const int64_t at = i % block_bytes;
      if (at < form.num_units * 2 && (kOneAndAHalf >> (at / kPanel * 8 + at % 8) & 1) != 0) {
        uint8_t& byte = blocks[static_cast<size_t>(i)];
        byte = static_cast<uint8_t>(byte | 0x80);
      }
    }
  }
  return blocks;
}

std::vector<uint8_t> random_packed(HearthContext* context, int bits, int64_t outputs,
                                   int64_t inputs) {
  const int64_t size = hearth_packed_bytes(bits, outputs, inputs);
  for (const FileForm& form : kFileForms) {
    if (form.bits == bits) {
      return random_blocks(form, size);
    }
  }
  const std::vector<float> weights = random_floats(outputs * inputs);
  std::vector<uint8_t> packed(static_cast<size_t>(size));
  hearth_pack(context, bits, kFloat32, weights.data(), 0, outputs, inputs, packed.data());
  return packed;
}

// The largest difference of the kernel's product from that of the unpacked weights.
double linear_error(HearthContext* context, int bits, int64_t rows, int64_t outputs, int64_t inputs,
                    bool has_bias) {
  const std::vector<uint8_t> packed = random_packed(context, bits, outputs, inputs);
  const std::vector<float> x = random_floats(rows * inputs);
  const std::vector<float> bias = random_floats(outputs);
  std::vector<float> unpacked(static_cast<size_t>(outputs * inputs));
  hearth_unpack(bits, packed.data(), outputs, inputs, unpacked.data());
  std::vector<float> out(static_cast<size_t>(rows * outputs));
  hearth_linear(context, bits, packed.data(), has_bias ? bias.data() : nullptr, x.data(), rows,
                outputs, inputs, out.data());
  double largest = 0.0;
  for (int64_t row = 0; row < rows; ++row) {
    for (int64_t output = 0; output < outputs; ++output) {
      double sum = has_bias ? bias[static_cast<size_t>(output)] : 0.0;
      for (int64_t i = 0; i < inputs; ++i) {
        sum += static_cast<double>(x[static_cast<size_t>(row * inputs + i)]) *
               unpacked[static_cast<size_t>(output * inputs + i)];
      }
      const double result = out[static_cast<size_t>(row * outputs + output)];
      largest = std::fmax(largest, std::fabs(sum - result));
    }
  }
  return largest / std::sqrt(static_cast<double>(inputs));
}

void run_linear(HearthContext* context, int variant) {
  std::vector<FileForm> forms(std::begin(kFileForms), std::end(kFileForms));
  for (const int bits : {32, 16, 8, 4}) {
    forms.push_back({bits, 32, 0});
  }
  for (const FileForm& form : forms) {
    for (const int64_t rows : {1, 2, 5, 6, 7, 13, 32, 41}) {
      for (const int64_t outputs : {1, 31, 33, 290}) {
        for (const int64_t groups : {1, 3, 33}) {
          const int64_t inputs = (form.inputs < 256 ? groups : 1 + groups % 4) * form.inputs;
          const double error =
              linear_error(context, form.bits, rows, outputs, inputs, rows % 2 == 0);
          expect(error < 0.1, "a product is wrong", variant);
        }
      }
    }
  }
}

void run_faulty_numbers(HearthContext* context, int variant) {
  constexpr float kInfinity = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kNumbers[] = {0.0f, 1e-45f, 1e-38f, 3e38f, -3e38f, -1e-7f, -kInfinity, kNan};
  constexpr int64_t kOutputs = 40;
  constexpr int64_t kInputs = 64;
  for (const int bits : {32, 16, 8, 4}) {
    for (const float number : kNumbers) {
      std::vector<float> weights = random_floats(kOutputs * kInputs);
      weights[100] = number;
      const int64_t size = hearth_packed_bytes(bits, kOutputs, kInputs);
      std::vector<uint8_t> packed(static_cast<size_t>(size));
      const int64_t faulty =
          hearth_pack(context, bits, kFloat32, weights.data(), 0, kOutputs, kInputs, packed.data());
      const float largest = bits > 8 ? 3.3e38f : 1e6f;
      expect(faulty == (std::fabs(number) < largest ? -1 : 1), "a faulty weight is missed",
             variant);
      std::vector<float> x(kInputs, number);
      std::vector<float> out(kOutputs);
      hearth_linear(context, bits, packed.data(), nullptr, x.data(), 1, kOutputs, kInputs,
                    out.data());
    }
  }
}

void run_bits(HearthContext* context, int variant) {
  for (const Hashes& expected : kHashes) {
    const char* const wrong = wrong_bits(context, expected, hearth_variant_name(variant));
    expect(wrong == nullptr, wrong, variant);
  }
}

void run_draw(HearthContext* context, int variant) {
  constexpr int64_t kRows = 6;
  constexpr uint64_t kOne = 0xbe12fe39fbd63f3c;    // seeds of the largest number at position 0
  constexpr uint64_t kLeast = 0x64166969b3969a0a;  // and of the least
  constexpr HearthDraw kDraws[kRows] = {
      {0.0, 0, 1.0, 0.0, 1, 0},   {1.0, 0, 1.0, 0.1, kOne, 0},     {1.0, 3, 1.0, 0.0, kOne, 0},
      {0.01, 40, 0.5, 0.0, 2, 9}, {100.0, 0, 0.9, 0.0, kLeast, 0}, {1.0, 2000, 0.9999, 0.3, 3, 9}};
  for (const int64_t vocab : {1, 7, 513, 3000}) {
    for (const float spoilt : {0.0f, -std::numeric_limits<float>::infinity(), std::nanf("")}) {
      std::vector<float> logits = random_floats(kRows * vocab);
      for (size_t i = 0; i < logits.size(); i += 2) {
        logits[i] += spoilt;
      }
      std::vector<int64_t> ids(kRows, -1);
      hearth_draw(context, logits.data(), kRows, vocab, kDraws, ids.data());
      for (const int64_t id : ids) {
        expect(id >= 0 && id < vocab, "a token is none", variant);
      }
    }
  }
}

// Vectors as a cache of bytes has them once they are rotated: with the scale behind each.
std::vector<int8_t> as_bytes(const std::vector<float>& vectors, size_t head_dim) {
  std::vector<int8_t> packed;
  for (size_t first = 0; first < vectors.size(); first += head_dim) {
    float largest = 0.0f;
    for (size_t i = first; i < first + head_dim; ++i) {
      largest = std::max(largest, std::fabs(vectors[i]));
    }
    const float scale = largest / 127;
    for (size_t i = first; i < first + head_dim; ++i) {
      packed.push_back(static_cast<int8_t>(std::lround(vectors[i] / scale)));
    }
    const auto* bytes = reinterpret_cast<const int8_t*>(&scale);
    packed.insert(packed.end(), bytes, bytes + sizeof scale);
  }
  return packed;
}

// What CachedGroup in kernels.h is: random keys, and values that are 2 once they are rotated back.
std::vector<uint8_t> as_groups(const std::vector<float>& vectors, int64_t head_dim) {
  constexpr int64_t kGroup = 32;
  constexpr int kQuarter = 0x3400;  // in half precision
  const int64_t rotated = head_dim & -head_dim;
  std::vector<uint8_t> packed;
  for (size_t first = 0; first < vectors.size(); first += static_cast<size_t>(head_dim)) {
    const bool is_key = first / static_cast<size_t>(kPageTokens * head_dim) % 2 == 0;
    const int scale = is_key ? kQuarter : 0x8000 + kQuarter + 0x400 * std::ilogb(rotated);
    const auto step = [&](int64_t i) {
      const float number = i < head_dim ? vectors[first + static_cast<size_t>(i)] : 0.0f;
      const bool is_first = !is_key && i % rotated == 0;  // of what is rotated together
      return is_key ? static_cast<int>(std::lround(number * 4)) : is_first ? -8 : 0;
    };
    for (int64_t group = 0; group < head_dim; group += kGroup) {
      packed.push_back(static_cast<uint8_t>(scale & 0xff));
      packed.push_back(static_cast<uint8_t>(scale >> 8));
      for (int64_t i = group; i < group + kGroup / 2; ++i) {
        packed.push_back(static_cast<uint8_t>((step(i) & 0xf) << 4 | (step(i + kGroup / 2) & 0xf)));
      }
    }
  }
  return packed;
}

void run_attention(HearthContext* context, int variant, int64_t groups, int64_t head_dim,
                   int64_t window) {
  constexpr int64_t kRows = 3;
  constexpr int64_t kHeads = 10;                           // several of which are a task
  const std::vector<int32_t> tables = {4, 0, 2, 5, 1, 3};  // two pages of each row
  const int64_t of_keys = kPageTokens * head_dim;          // of a head
  const auto num_heads = static_cast<int64_t>(tables.size()) * kHeads;
  std::vector<float> memory = random_floats(num_heads * 2 * of_keys);
  for (int64_t head = 0; head < num_heads; ++head) {  // values of 2, so that every average is 2
    std::fill_n(memory.begin() + (2 * head + 1) * of_keys, of_keys, 2.0f);
  }
  const std::vector<int64_t> rows = {2, 2, 2, 0, 1, 1};
  const std::vector<int64_t> lengths = {31, 32, 33, 48, 1, 2};
  const auto tokens = static_cast<int64_t>(rows.size());
  const int64_t width = kHeads * groups * head_dim;
  const std::vector<float> queries = random_floats(tokens * width);
  std::vector<float> out(queries.size());
  const auto attend = [&](int cache_type, void* base, int64_t vector_bytes) {
    const HearthPages pages = {static_cast<char*>(base), 2 * kHeads * kPageTokens * vector_bytes,
                               tables.data(), 2};
    hearth_attention(context, queries.data(), width, cache_type, &pages, 0, rows.data(),
                     lengths.data(), tokens, kHeads, groups, head_dim, window, 0.3f, nullptr,
                     out.data());
  };
  attend(kFloat32, memory.data(), head_dim * static_cast<int64_t>(sizeof(float)));
  const auto expect_averages = [&](float error) {
    for (const float value : out) {
      expect(std::fabs(value - 2.0f) < error, "an average is wrong", variant);
    }
  };
  expect_averages(1e-4f);
  std::fill(out.begin(), out.end(), 0.0f);
  const int64_t rotated = head_dim & -head_dim;
  for (int64_t head = 0; head < num_heads;
       ++head) {  // values that are 2 once they are rotated back
    float* const values = memory.data() + (2 * head + 1) * of_keys;
    for (int64_t i = 0; i < of_keys; ++i) {
      values[i] = i % rotated == 0 ? 2.0f * static_cast<float>(rotated) : 0.0f;
    }
  }
  constexpr float kOfWeights = 0.1f;  // where they become bytes
  std::vector<int8_t> bytes = as_bytes(memory, static_cast<size_t>(head_dim));
  attend(kInt8Cache, bytes.data(), head_dim + static_cast<int64_t>(sizeof(float)));
  expect_averages(kOfWeights);
  std::fill(out.begin(), out.end(), 0.0f);
  std::vector<uint8_t> groups_of_4 = as_groups(memory, head_dim);
  attend(kInt4Cache, groups_of_4.data(), (head_dim + 31) / 32 * 18);
  expect_averages(kOfWeights);
}

// One head of the delta rule as its formula says, in double precision: of what follows convolution,
// [tokens][queries, keys, values of one head], with `decays` [tokens][key_dim]. Returns
// [tokens][value_dim], not normalised.
std::vector<double> delta_reference(const HearthRecurrent& layer, const std::vector<double>& mixed,
                                    const std::vector<double>& decays,
                                    const std::vector<double>& betas) {
  const auto keys = static_cast<size_t>(layer.key_dim);
  const auto values = static_cast<size_t>(layer.value_dim);
  std::vector<double> state(keys * values);
  std::vector<double> out;
  for (size_t token = 0; token < betas.size(); ++token) {
    const double* const query = mixed.data() + token * (2 * keys + values);
    const double* const key = query + keys;
    for (size_t column = 0; column < values; ++column) {
      double seen = 0;
      for (size_t i = 0; i < keys; ++i) {
        state[i * values + column] *= decays[token * keys + i];
        seen += key[i] * state[i * values + column];
      }
      const double update = betas[token] * (key[keys + column] - seen);
      double read = 0;
      for (size_t i = 0; i < keys; ++i) {
        state[i * values + column] += key[i] * update;
        read += query[i] * state[i * values + column];
      }
      out.push_back(read);
    }
  }
  return out;
}

double sigmoid(double x) { return 1 / (1 + std::exp(-x)); }

double silu(double x) { return x * sigmoid(x); }

// Every token of a row, with drafts and without, in memory of exactly its size.
void run_delta(HearthContext* context, int variant, int64_t key_dim, int64_t value_dim,
               bool is_kimi = false) {
  constexpr int64_t kWidth = 4;
  constexpr size_t kTokens = 45;
  constexpr int64_t kKept = 40;
  constexpr float kEps = 1e-6f;
  HearthRecurrent layer = {};
  layer.kind = is_kimi ? kKimiDelta : kDelta;
  layer.heads = 1;
  layer.key_heads = 1;
  layer.key_dim = key_dim;
  layer.value_dim = value_dim;
  layer.conv_dim = 2 * key_dim + value_dim;
  layer.conv_width = kWidth;
  const std::vector<float> conv = random_floats(kWidth * layer.conv_dim);
  const std::vector<float> head_norm = random_floats(value_dim);
  const std::vector<float> decay = {-0.7f};
  const std::vector<float> step_bias(is_kimi ? static_cast<size_t>(key_dim) : 1, -0.5f);
  layer.conv = conv.data();
  layer.decay = decay.data();
  layer.step_bias = step_bias.data();
  layer.head_norm = head_norm.data();
  layer.norm_eps = kEps;
  const int64_t channel_steps_at = layer.conv_dim + value_dim;
  const int64_t stride = channel_steps_at + (is_kimi ? key_dim : 0);
  const std::vector<float> rows = random_floats(kTokens * stride);
  const std::vector<float> steps = random_floats(kTokens * 2);
  const std::vector<float> tail = random_floats((kWidth - 1) * layer.conv_dim);
  std::vector<float> state(static_cast<size_t>(key_dim * value_dim));
  std::vector<float> out(kTokens * static_cast<size_t>(value_dim));
  hearth_delta(context, &layer, rows.data(), stride, steps.data(), kTokens, kKept, tail.data(),
               state.data(), out.data());

  std::vector<double> mixed;
  std::vector<double> decays;
  std::vector<double> betas;
  const auto unit = [&](size_t at, int64_t size, double length) {
    double squares = 1e-6;
    for (int64_t i = 0; i < size; ++i) {
      squares += mixed[at + static_cast<size_t>(i)] * mixed[at + static_cast<size_t>(i)];
    }
    for (int64_t i = 0; i < size; ++i) {
      mixed[at + static_cast<size_t>(i)] *= length / std::sqrt(squares);
    }
  };
  for (size_t token = 0; token < kTokens; ++token) {
    const size_t at = mixed.size();
    for (int64_t channel = 0; channel < layer.conv_dim; ++channel) {
      double sum = 0;
      for (int64_t tap = 0; tap < kWidth; ++tap) {
        const int64_t from = static_cast<int64_t>(token) - kWidth + 1 + tap;
        const float input =
            from < 0 ? tail[static_cast<size_t>((kWidth - 1 + from) * layer.conv_dim + channel)]
                     : rows[static_cast<size_t>(from * stride + channel)];
        sum += static_cast<double>(conv[static_cast<size_t>(tap * layer.conv_dim + channel)]) *
               static_cast<double>(input);
      }
      mixed.push_back(silu(sum));
    }
    unit(at, key_dim, 1 / std::sqrt(static_cast<double>(key_dim)));
    unit(at + static_cast<size_t>(key_dim), key_dim, 1);
    const float* const channel_steps =
        rows.data() + static_cast<int64_t>(token) * stride + channel_steps_at;
    for (int64_t i = 0; i < key_dim; ++i) {
      const double step = is_kimi ? channel_steps[i] : steps[2 * token + 1];
      decays.push_back(std::exp(decay[0] * std::log1p(std::exp(step + step_bias[0]))));
    }
    betas.push_back(sigmoid(steps[2 * token]));
  }
  const std::vector<double> read = delta_reference(layer, mixed, decays, betas);
  const auto values = static_cast<size_t>(value_dim);
  for (size_t token = 0; token < kTokens; ++token) {
    double squares = 0;
    for (size_t i = 0; i < values; ++i) {
      squares += read[token * values + i] * read[token * values + i];
    }
    const double norm = std::sqrt(squares / static_cast<double>(value_dim) + kEps);
    for (size_t i = 0; i < values; ++i) {
      const double gate =
          rows[token * static_cast<size_t>(stride) + static_cast<size_t>(layer.conv_dim) + i];
      const double share = is_kimi ? sigmoid(gate) : silu(gate);
      const double wanted = read[token * values + i] / norm * head_norm[i] * share;
      expect(std::fabs(out[token * values + i] - wanted) < 1e-3 * (1 + std::fabs(wanted)),
             "a delta rule is wrong", variant);
    }
  }
}

// A model of one layer, with memory for what it points to. From kFirstMixture on `kind` has
// experts.
struct Model {
  static constexpr int kFirstMixture = 16;
  static constexpr int kStreamed = 8;  // has inputs of layers, too
  static constexpr int64_t kExperts = 36;
  static constexpr int64_t kExpertFfn = 32;
  static constexpr int64_t kHidden = 96;
  static constexpr int64_t kFfn = 64;
  static constexpr int64_t kHeads = 4;
  static constexpr int64_t kKvHeads = 2;
  static constexpr int64_t kHeadDim = 24;
  static constexpr int64_t kValueDim = 16;
  static constexpr int64_t kLatent = 32;
  static constexpr int64_t kPanelSize = 32;
  static constexpr int64_t kVocab = 70;
  static constexpr int64_t kCapacity = 16;  // of positions that steps use
  static constexpr int64_t kRows = 3;

  Model(HearthContext* context, int kind, int bits) {
    constexpr int kFormBits[] = {32, 16, 8, 4};
    const bool is_gated = kind % 2 == 0;
    const bool has_latents = kind % 8 == 3;
    description.bits = bits;
    description.norm = kind / 2 % 2;
    description.activation = kind % 5;
    description.is_gated = is_gated ? 1 : 0;
    description.is_parallel = kind / 4 % 2;
    description.cache_type = (kind + kind / 8) % 4;
    description.num_layers = 1;
    description.hidden = kHidden;
    description.num_heads = kHeads;
    layer.num_kv_heads = has_latents ? 1 : kKvHeads;
    layer.head_dim = kHeadDim;
    layer.value_dim = has_latents ? kValueDim : kHeadDim;
    layer.rotary_dim = kind % 2 == 0 ? kHeadDim : kHeadDim / 2;
    description.is_qk_norm_whole = kind % 2;
    description.is_qk_norm_last = kind / 3 % 2;
    description.logits_softcap = kind % 4 == 3 ? 5.0f : 0.0f;
    description.norm_eps = 1e-5f;
    description.attention_scale = 0.2f;
    description.embedding_multiplier = 1.5f;
    description.residual_multiplier = 0.5f;
    description.logits_divisor = 2.0f;
    description.layers = &layer;
    description.final_norm = norm();
    description.head = linear(context, bits, kVocab, kHidden);
    description.embedding_bits = kFormBits[kind % 4];
    description.embedding = linear(context, kFormBits[kind % 4], kVocab, kHidden).packed;
    if (kind % 5 != 1) {
      layer.attention_norm = norm();
    }
    if (kind % 3 != 1 || kind >= kFirstMixture) {
      layer.mlp_norm = norm();
    }
    if (kind % 3 == 2) {
      layer.attention_output_norm = norm();
      layer.mlp_output_norm = norm();
    }
    if (kind % 7 != 0) {
      layer.cos = floats(kCapacity * layer.rotary_dim);
      layer.sin = floats(kCapacity * layer.rotary_dim);
    }
    layer.query_scales = kind % 5 == 2 ? floats(kCapacity) : nullptr;
    layer.sinks = kind % 4 == 0 ? floats(kHeads) : nullptr;
    layer.output_scale = kind % 4 == 1 ? floats(1) : nullptr;
    description.has_value_norm = kind % 4 == 2 ? 1 : 0;
    if (kind % 5 == 3) {
      add_inputs(context, kFormBits[kind % 4], bits);
    }
    if (kind == kStreamed) {
      add_streams(context, bits);
    }
    if (kind % 6 == 0) {
      description.swiglu_limit = 0.5f;
      description.swiglu_alpha = 1.7f;
    }
    layer.qk_norm = kind % 3 == 0 ? floats(2 * kHeads * kHeadDim) : nullptr;
    if (has_latents) {
      add_latents(context, kind, bits);
    } else {
      description.has_output_gates = kind % 5 == 4 ? 1 : 0;
      const int64_t asking = description.has_output_gates ? 2 * kHeads : kHeads;
      const bool is_apart = kind % 2 == 1;
      layer.are_keys_values = kind % 6 == 2 ? 1 : 0;
      const int64_t kinds = is_apart || layer.are_keys_values != 0 ? 1 : 2;
      layer.qkv = linear(context, bits, (asking + kinds * kKvHeads) * kHeadDim, kHidden);
      if (is_apart) {
        layer.values = linear(context, bits == 8 ? 4 : bits, kKvHeads * kHeadDim, kHidden);
      }
    }
    layer.out = linear(context, bits, kHidden, kHeads * layer.value_dim);
    if (kind < kFirstMixture) {
      layer.up = linear(context, bits, is_gated ? 2 * kFfn : kFfn, kHidden);
      layer.down = linear(context, bits, kHidden, kFfn);
    } else {
      const int64_t outputs = is_gated ? 2 * kExpertFfn : kExpertFfn;
      layer.up = linear(context, bits, kExperts * outputs, kHidden);
      layer.down = linear(context, bits, kExperts * kHidden, kExpertFfn);
      layer.router = linear(context, 32, kExperts, kHidden);
      const bool has_groups = kind % 5 < 3;
      const int64_t experts_per_token = kind % 4 == 3 ? kExperts : 5;
      description.mixture = {
          experts_per_token,     has_groups ? 4 : 1, has_groups ? 3 : 1, 1 + kind % 2, 1.5f, 1e-6f,
          kind % 3 == 0 ? 1 : 0, kind / 2 % 2};
      if (kind % 3 == 0) {
        layer.selection_bias = floats(kExperts);
        layer.shared_up = linear(context, bits, is_gated ? 2 * kFfn : kFfn, kHidden);
        layer.shared_down = linear(context, bits, kHidden, kFfn);
        if (bits == 8) {
          layer.shared_gate = linear(context, 32, 1, kHidden);
        } else {
          layer.expert_scales = floats(kExperts);
          for (HearthNorm* each :
               {&layer.router_norm, &layer.experts_norm, &layer.experts_output_norm,
                &layer.shared_output_norm, &layer.mlp_output_norm}) {
            *each = norm();
          }
        }
      }
    }
    const int64_t key_dim = has_latents ? layer.kv_a.outputs : kHeadDim;
    const int64_t vector_bytes = description.cache_type == kInt4Cache ? (key_dim + 31) / 32 * 18
                                 : description.cache_type == kInt8Cache
                                     ? key_dim + 4
                                     : key_dim * (4 >> description.cache_type);
    const int64_t kinds = has_latents ? 1 : 2;
    const int64_t page_bytes = layer.num_kv_heads * kinds * kPageTokens * vector_bytes;
    cache.resize(static_cast<size_t>(kRows * page_bytes));
    description.pages = {cache.data(), page_bytes, tables.data(), 1};
    layer.table_offset = kRows;
    layer.window = kind % 5 == 0 ? 7 : 0;
  }

  void add_inputs(HearthContext* context, int embedding_bits, int bits) {
    constexpr int64_t kSize = 64;
    description.inputs = {kSize,
                          kVocab,
                          linear(context, embedding_bits, kVocab, kSize).packed,
                          embedding_bits,
                          linear(context, bits, kSize, kHidden),
                          floats(kSize)};
    layer.input_gate = linear(context, bits, kSize, kHidden);
    layer.input_out = linear(context, bits, kHidden, kSize);
    layer.input_norm = norm();
  }

  void add_streams(HearthContext* context, int bits) {
    constexpr int64_t kStreams = 3;
    constexpr int64_t kRank = 32;
    HearthStreams& streams = description.streams;
    streams.count = kStreams;
    for (HearthLinear* each : {&streams.in, &streams.out}) {
      *each = linear(context, bits, (kStreams - 1) * kHidden, kHidden);
      each->bias = nullptr;
    }
    layer.altup = {floats(kHidden), floats(kStreams * kHidden),
                   floats(kStreams * kStreams * kStreams), floats(kStreams * kStreams),
                   floats(kHidden)};
    layer.laurel_in = linear(context, bits, kRank, kHidden);
    layer.laurel_out = linear(context, bits, kHidden, kRank);
    layer.laurel_norm = norm();
    layer.gate_cutoff = floats(1);
  }

  void add_latents(HearthContext* context, int kind, int bits) {
    const int64_t rotary_dim = layer.rotary_dim;
    if (kind >= kFirstMixture) {
      layer.q_a = linear(context, bits, kLatent, kHidden);
      layer.q_a_norm = floats(kLatent);
    }
    layer.q_b = linear(context, bits, kHeads * kHeadDim, kind >= kFirstMixture ? kLatent : kHidden);
    layer.kv_a = linear(context, bits, rotary_dim + kLatent, kHidden);
    layer.kv_a_norm = floats(kLatent);
    layer.k_b = linear(context, bits, kHeads * kLatent, kPanelSize);
    layer.v_b = linear(context, bits, kHeads * kPanelSize, kLatent);
  }

  const float* floats(int64_t count) {
    memory.push_back(random_floats(count));
    return memory.back().data();
  }

  HearthNorm norm() { return {floats(kHidden), description.norm == 0 ? nullptr : floats(kHidden)}; }

  HearthLinear linear(HearthContext* context, int bits, int64_t outputs, int64_t inputs) {
    packs.emplace_back(static_cast<size_t>(hearth_packed_bytes(bits, outputs, inputs)));
    const float* weights = floats(outputs * inputs);
    hearth_pack(context, bits, kFloat32, weights, 0, outputs, inputs, packs.back().data());
    return {packs.back().data(), bits == 8 ? floats(outputs) : nullptr, outputs, inputs, bits};
  }

  HearthModel description = {};
  HearthLayer layer = {};
  std::list<std::vector<float>> memory;
  std::list<std::vector<uint8_t>> packs;
  const std::vector<int32_t> tables = {9, 9, 9, 2, 0, 1};  // the last: one page of each row
  std::vector<char> cache;
};

// Two children of one token, of which the second has a child: the same bits as its branch alone.
void run_tree(HearthContext* context, int variant, const Model& model) {
  const std::vector<int64_t> ids = {3, 5, 8, 13, 3, 8, 13};
  const std::vector<int64_t> rows = {0, 0, 0, 0, 1, 1, 1};
  const std::vector<int64_t> positions = {0, 1, 1, 2, 0, 1, 2};
  const std::vector<int64_t> slots = {0, 1, 2, 3, 0, 1, 2};
  const std::vector<int64_t> parents = {-1, 0, 0, 2, -1, 4, 5};
  const std::vector<int64_t> outputs = {3, 6};
  std::vector<float> logits(outputs.size() * Model::kVocab);
  const HearthBatch batch = {ids.data(),
                             rows.data(),
                             positions.data(),
                             slots.data(),
                             parents.data(),
                             outputs.data(),
                             static_cast<int64_t>(ids.size()),
                             static_cast<int64_t>(outputs.size()),
                             logits.data(),
                             nullptr,
                             nullptr,
                             nullptr};
  hearth_step(context, &model.description, &batch);
  const auto second = logits.begin() + Model::kVocab;
  expect(std::equal(logits.begin(), second, second), "a branch depends on its tree", variant);
}

// The layers by themselves, then the head by itself: the same bits as both in one call.
void run_split(HearthContext* context, int variant, const Model& model, const HearthBatch& whole) {
  std::vector<float> between(static_cast<size_t>(whole.num_tokens * Model::kHidden));
  std::vector<float> logits(static_cast<size_t>(whole.num_outputs * Model::kVocab));
  HearthModel part = model.description;
  part.head = {};
  HearthBatch batch = whole;
  batch.num_outputs = 0;
  batch.logits = nullptr;
  batch.hidden = nullptr;
  batch.after = between.data();
  hearth_step(context, &part, &batch);
  part = model.description;
  part.num_layers = 0;
  part.embedding = nullptr;
  batch = whole;
  batch.ids = nullptr;
  batch.hidden = nullptr;
  batch.logits = logits.data();
  batch.before = between.data();
  hearth_step(context, &part, &batch);
  expect(std::equal(logits.begin(), logits.end(), whole.logits), "a split changes bits", variant);
}

// Some of the outputs, without hidden states, so that the last layer is computed for them alone:
// the same bits.
void run_cut(HearthContext* context, int variant, const Model& model, const HearthBatch& whole) {
  constexpr int64_t kEvery = 5;
  std::vector<int64_t> outputs;
  std::vector<float> expected;
  for (int64_t i = 0; i < whole.num_outputs; i += kEvery) {
    outputs.push_back(whole.outputs[i]);
    const float* const logits = whole.logits + i * Model::kVocab;
    expected.insert(expected.end(), logits, logits + Model::kVocab);
  }
  std::vector<float> logits(expected.size());
  HearthBatch batch = whole;
  batch.outputs = outputs.data();
  batch.num_outputs = static_cast<int64_t>(outputs.size());
  batch.logits = logits.data();
  batch.hidden = nullptr;
  hearth_step(context, &model.description, &batch);
  expect(logits == expected, "a token depends on what is read of others", variant);
}

// The portable variant's logits, nearly: attention adds in an order of each variant's own, where it
// does not round, and what is a little different may be rounded to another byte.
void run_portable(HearthContext* portable, int variant, const Model& model,
                  const HearthBatch& whole) {
  std::vector<float> logits(static_cast<size_t>(whole.num_outputs * Model::kVocab));
  HearthBatch batch = whole;
  batch.logits = logits.data();
  batch.hidden = nullptr;
  hearth_step(portable, &model.description, &batch);
  double all = 0;
  double difference = 0;
  for (size_t i = 0; i < logits.size(); ++i) {
    all += std::pow(logits[i], 2);
    difference += std::pow(logits[i] - whole.logits[i], 2);
  }
  const bool is_rounded = model.description.bits != 32 || model.description.cache_type > kFloat32;
  const double bound = is_rounded ? 0.2 : 1e-3;
  expect(std::sqrt(difference / all) < bound, "a step is not like the portable one", variant);
}

// Token by token, and all at once with company: the same bits.
void run_step(HearthContext* context, HearthContext* portable, int variant, int kind, int bits) {
  const Model model(context, kind, bits);
  std::vector<int64_t> ids;
  std::vector<int64_t> rows;
  std::vector<int64_t> positions;
  for (const int64_t row : {2, 0, 1}) {
    for (int64_t position = 0; position < 14; ++position) {
      ids.push_back((row * 31 + position * 7) % Model::kVocab);
      rows.push_back(row);
      positions.push_back(position);
    }
  }
  const size_t tokens = ids.size();
  std::vector<float> alone(tokens * Model::kVocab);
  const int64_t only = 0;
  for (size_t token = 0; token < tokens; ++token) {
    const HearthBatch batch = {&ids[token],
                               &rows[token],
                               &positions[token],
                               &positions[token],
                               nullptr,
                               &only,
                               1,
                               1,
                               &alone[token * Model::kVocab],
                               nullptr,
                               nullptr,
                               nullptr};
    hearth_step(context, &model.description, &batch);
  }
  constexpr size_t kOutputs = 37;
  std::vector<int64_t> outputs;
  for (size_t token = tokens - kOutputs; token < tokens; ++token) {
    outputs.push_back(static_cast<int64_t>(token));
  }
  std::vector<float> together(kOutputs * Model::kVocab);
  std::vector<float> hidden(tokens * Model::kHidden);
  const HearthBatch batch = {ids.data(),
                             rows.data(),
                             positions.data(),
                             positions.data(),
                             nullptr,
                             outputs.data(),
                             static_cast<int64_t>(tokens),
                             kOutputs,
                             together.data(),
                             hidden.data(),
                             nullptr,
                             nullptr};
  hearth_step(context, &model.description, &batch);
  run_split(context, variant, model, batch);
  run_cut(context, variant, model, batch);
  run_tree(context, variant, model);
  run_portable(portable, variant, model, batch);
  const auto skipped = static_cast<std::ptrdiff_t>((tokens - kOutputs) * Model::kVocab);
  expect(std::equal(together.begin(), together.end(), alone.begin() + skipped),
         "a token depends on its company", variant);
}

// Heads of two layers, with an output for all or one for each.
struct Heads {
  static constexpr int64_t kWidth = 96;
  static constexpr int64_t kHeads = 3;

  Heads(HearthContext* context, int64_t num_outputs, int64_t vocab, int64_t num_ranks) {
    first = make(context, kHeads * kWidth, true);
    for (int64_t head = 0; head < kHeads; ++head) {
      later.push_back(make(context, kWidth, true));
    }
    for (int64_t output = 0; output < num_outputs; ++output) {
      outputs.push_back(make(context, vocab, false));
    }
    description = {first,  later.data(), outputs.data(), kHeads,
                   kHeads, num_outputs,  num_ranks,      kDivisor};
  }

  HearthLinear make(HearthContext* context, int64_t rows, bool has_bias) {
    memory.push_back(random_floats(rows * kWidth));
    std::vector<float>& weights = memory.back();
    for (float& weight : weights) {
      weight *= 0.1f;
    }
    packs.emplace_back(static_cast<size_t>(hearth_packed_bytes(8, rows, kWidth)));
    hearth_pack(context, 8, kFloat32, weights.data(), 0, rows, kWidth, packs.back().data());
    memory.push_back(random_floats(rows));
    return {packs.back().data(), has_bias ? memory.back().data() : nullptr, rows, kWidth, 8};
  }

  // A linear map of one state, by the unpacked weights.
  static std::vector<double> product(const HearthLinear& linear, int64_t begin, int64_t count,
                                     const std::vector<double>& x) {
    std::vector<float> weights(static_cast<size_t>(linear.outputs * kWidth));
    hearth_unpack(8, static_cast<const uint8_t*>(linear.packed), linear.outputs, kWidth,
                  weights.data());
    std::vector<double> out(static_cast<size_t>(count));
    for (int64_t i = 0; i < count; ++i) {
      double sum = linear.bias == nullptr ? 0.0 : linear.bias[begin + i];
      for (int64_t j = 0; j < kWidth; ++j) {
        sum += x[static_cast<size_t>(j)] * weights[static_cast<size_t>((begin + i) * kWidth + j)];
      }
      out[static_cast<size_t>(i)] = sum;
    }
    return out;
  }

  // What one head thinks of all tokens.
  std::vector<double> probabilities(int64_t head, const float* hidden) const {
    std::vector<double> state(hidden, hidden + kWidth);
    const auto add = [&](const std::vector<double>& inner) {
      for (size_t i = 0; i < state.size(); ++i) {
        state[i] += inner[i] / (1.0 + std::exp(-inner[i]));
      }
    };
    add(product(first, head * kWidth, kWidth, state));
    add(product(later[static_cast<size_t>(head)], 0, kWidth, state));
    const HearthLinear& output = outputs[outputs.size() == 1 ? 0 : static_cast<size_t>(head)];
    std::vector<double> weights = product(output, 0, output.outputs, state);
    double total = 0.0;
    for (double& weight : weights) {
      weight = std::exp(weight / kDivisor);
      total += weight;
    }
    for (double& weight : weights) {
      weight /= total;
    }
    return weights;
  }

  static constexpr float kDivisor = 2.0f;
  HearthLinear first = {};
  std::vector<HearthLinear> later;
  std::vector<HearthLinear> outputs;
  HearthHeads description = {};
  std::list<std::vector<float>> memory;
  std::list<std::vector<uint8_t>> packs;
};

void run_guess(HearthContext* context, int variant, int64_t num_outputs, int64_t vocab) {
  const int64_t num_ranks = std::min<int64_t>(vocab, 9);
  const Heads heads(context, num_outputs, vocab, num_ranks);
  for (const int64_t rows : {1, 7, 33}) {
    const std::vector<float> hidden = random_floats(rows * Heads::kWidth);
    const auto num_guesses = static_cast<size_t>(rows * Heads::kHeads * num_ranks);
    std::vector<int64_t> tokens(num_guesses, -1);
    std::vector<float> guessed(num_guesses);
    hearth_guess(context, &heads.description, hidden.data(), rows, tokens.data(), guessed.data());
    for (int64_t state = 0; state < rows * Heads::kHeads; ++state) {
      const float* const own = hidden.data() + state / Heads::kHeads * Heads::kWidth;
      const std::vector<double> all = heads.probabilities(state % Heads::kHeads, own);
      std::vector<double> sorted = all;
      std::sort(sorted.rbegin(), sorted.rend());
      for (int64_t rank = 0; rank < num_ranks; ++rank) {
        const auto place = static_cast<size_t>(state * num_ranks + rank);
        const double probability = all[static_cast<size_t>(tokens[place])];
        const double best = sorted[static_cast<size_t>(rank)];
        expect(std::fabs(probability - guessed[place]) < 0.03, "a guess is not so likely", variant);
        expect(std::fabs(probability - best) < 0.03, "a guess is not the likeliest", variant);
      }
    }
  }
  std::vector<float> hidden(Heads::kWidth, std::nanf(""));
  std::vector<int64_t> tokens(static_cast<size_t>(Heads::kHeads * num_ranks), -1);
  std::vector<float> guessed(tokens.size());
  hearth_guess(context, &heads.description, hidden.data(), 1, tokens.data(), guessed.data());
  for (const int64_t token : tokens) {
    expect(token >= 0 && token < vocab, "a guess is no token", variant);
  }
}

}  // namespace

// Of all variants that the processor has, or of the named one, which it must have.
int main(int argc, char** argv) {
  int num_variants = 0;
  while (hearth_variant_name(num_variants) != nullptr) {
    ++num_variants;
  }
  HearthContext* portable = hearth_create(num_variants - 1, kThreads);
  for (int variant = 0; variant < num_variants; ++variant) {
    const bool is_named = argc > 1 && std::strcmp(argv[1], hearth_variant_name(variant)) == 0;
    if (argc > 1 && !is_named) {
      continue;
    }
    if (hearth_is_supported(variant) == 0) {
      expect(!is_named, "not on this processor", variant);
      std::printf("%s: not on this processor\n", hearth_variant_name(variant));
      continue;
    }
    HearthContext* context = hearth_create(variant, kThreads);
    run_bits(context, variant);
    run_linear(context, variant);
    run_faulty_numbers(context, variant);
    run_draw(context, variant);
    for (const int64_t vocab : {1, 33, 300}) {
      run_guess(context, variant, 1, vocab);
      run_guess(context, variant, Heads::kHeads, vocab);
    }
    for (const int64_t head_dim : {2, 24, 64, 576}) {
      for (const int64_t window : {0, 1, 17}) {
        run_attention(context, variant, 1, head_dim, window);
        run_attention(context, variant, 7, head_dim, window);
        run_attention(context, variant, 40, head_dim, window);
      }
    }
    run_delta(context, variant, 16, 32);
    run_delta(context, variant, 128, 96);
    run_delta(context, variant, 256, 256);
    run_delta(context, variant, 48, 64, true);
    for (int kind = 0; kind < Model::kFirstMixture + 4; ++kind) {
      run_step(context, portable, variant, kind, 8);
      run_step(context, portable, variant, kind, 4);
    }
    run_step(context, portable, variant, Model::kFirstMixture, 32);
    run_step(context, portable, variant, Model::kFirstMixture + 2, 16);
    hearth_destroy(context);
    std::printf("%s: done\n", hearth_variant_name(variant));
  }
  hearth_destroy(portable);
  return num_failures == 0 ? EXIT_SUCCESS : EXIT_FAILURE;
}
