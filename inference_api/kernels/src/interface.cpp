#include "interface.h"

#include <atomic>
#include <new>
#include <system_error>
#include <vector>

#include "draw.h"
#include "guess.h"
#include "kernels.h"
#include "model_calls.h"
#include "processor.h"
#include "step.h"
#include "unpack.h"
#include "workers.h"

using hearth::Bits;
using hearth::kGroup;
using hearth::kPanel;
using hearth::SourceType;
using hearth::with_block;

struct HearthContext {
  HearthContext(const hearth::Kernels& kernels, int num_threads) : workers(kernels, num_threads) {}

  hearth::Workers workers;
  hearth::Step step;
  hearth::Guess guess;
  std::vector<char> activations;  // activations of the current product; keeps its memory
};

namespace {

struct Variant {
  const char* name;
  const hearth::Kernels* kernels;
  bool (*is_supported)();
};

// A build may leave out variants that this processor lacks or will not use: see build.py.
constexpr Variant kVariants[] = {
#if defined(__x86_64__) && !defined(HEARTH_WITHOUT_AMX)
    {"amx", &hearth::kAmx, hearth::has_amx},
#endif
#if defined(__x86_64__) && !defined(HEARTH_WITHOUT_AVX512BF16)
    {"avx512bf16", &hearth::kAvx512Bf16, hearth::has_avx512bf16},
#endif
#if defined(__x86_64__) && !defined(HEARTH_WITHOUT_AVX512VNNI)
    {"avx512vnni", &hearth::kAvx512Vnni, hearth::has_avx512vnni},
#endif
#if defined(__x86_64__) && !defined(HEARTH_WITHOUT_AVXVNNI)
    {"avxvnni", &hearth::kAvxVnni, hearth::has_avxvnni},
#endif
#if defined(__x86_64__) && !defined(HEARTH_WITHOUT_AVX2)
    {"avx2", &hearth::kAvx2, hearth::has_avx2},
#endif
#if defined(__aarch64__) && !defined(HEARTH_WITHOUT_I8MM)
    {"i8mm", &hearth::kI8mm, hearth::has_i8mm},
#endif
#if defined(__aarch64__) && !defined(HEARTH_WITHOUT_DOTPROD)
    {"dotprod", &hearth::kDotProd, hearth::has_dotprod},
#endif
#if defined(__aarch64__) && !defined(HEARTH_WITHOUT_NEON)
    {"neon", &hearth::kNeon, [] { return true; }},
#endif
#if !defined(HEARTH_WITHOUT_PORTABLE)
    {"portable", &hearth::kPortable, [] { return true; }},
#endif
};
constexpr int kNumVariants = sizeof(kVariants) / sizeof(kVariants[0]);

// Returns the bytes of a panel for each group of inputs.
int64_t panel_group_bytes(Bits bits) {
  return with_block(bits, [](auto type) -> int64_t {
    using Block = typename decltype(type)::Block;
    return sizeof(Block) * kGroup / Block::kInputs;
  });
}

int64_t type_bytes(SourceType type) { return type == SourceType::kFloat32 ? 4 : 2; }

}  // namespace

const char* hearth_variant_name(int variant) {
  return variant >= 0 && variant < kNumVariants ? kVariants[variant].name : nullptr;
}

int hearth_is_supported(int variant) { return kVariants[variant].is_supported() ? 1 : 0; }

HearthContext* hearth_create(int variant, int num_threads) try {
  return new HearthContext(*kVariants[variant].kernels, num_threads);
} catch (const std::bad_alloc&) {
  return nullptr;
} catch (const std::system_error&) {
  return nullptr;
}

void hearth_destroy(HearthContext* context) { delete context; }

int64_t hearth_packed_bytes(int bits, int64_t outputs, int64_t inputs) {
  return hearth::num_panels(outputs) * (inputs / kGroup) *
         panel_group_bytes(static_cast<Bits>(bits));
}

int64_t hearth_pack(HearthContext* context, int bits, int type, const void* weights, int64_t first,
                    int64_t count, int64_t inputs, void* packed) {
  const auto kind = static_cast<Bits>(bits);
  const auto source = static_cast<SourceType>(type);
  const int64_t num_groups = inputs / kGroup;
  std::atomic<int64_t> faulty{-1};
  context->workers.pool.run(count, [&](int64_t row) {
    const int64_t output = first + row;
    const auto* from = static_cast<const char*>(weights) + row * inputs * type_bytes(source);
    auto* to = static_cast<char*>(packed) + output / kPanel * num_groups * panel_group_bytes(kind);
    const auto lane = static_cast<int>(output % kPanel);
    if (!context->workers.kernels.pack_row(kind, source, from, num_groups, lane, to)) {
      faulty = row;
    }
  });
  return faulty;
}

void hearth_unpack(int bits, const void* packed, int64_t outputs, int64_t inputs, float* weights) {
  for (int64_t output = 0; output < outputs; ++output) {
    hearth::unpack_row(static_cast<Bits>(bits), packed, inputs / kGroup, output,
                       weights + output * inputs);
  }
}

int hearth_linear(HearthContext* context, int bits, const void* packed, const float* bias,
                  const float* x, int64_t rows, int64_t outputs, int64_t inputs, float* out) try {
  hearth::multiply_floats(context->workers, {packed, bias, outputs, inputs, bits}, x, rows,
                          context->activations, out);
  return 0;
} catch (const std::bad_alloc&) {
  return 1;
}

int hearth_attention(HearthContext* context, const float* queries, int64_t query_stride,
                     int cache_type, const HearthPages* pages, int64_t page_offset,
                     const int64_t* rows, const int64_t* lengths, int64_t tokens, int64_t kv_heads,
                     int64_t groups, int64_t head_dim, int64_t window, float scale,
                     const float* sinks, float* out) try {
  context->workers.attend({queries, query_stride, static_cast<hearth::CacheType>(cache_type),
                           *pages, page_offset, rows, lengths, nullptr, tokens, kv_heads, groups,
                           head_dim, head_dim, window, scale, sinks, out});
  return 0;
} catch (const std::bad_alloc&) {
  return 1;
}

void hearth_delta(HearthContext* context, const HearthRecurrent* layer, const float* rows,
                  int64_t row_stride, const float* steps, int64_t num_tokens, int64_t num_kept,
                  const float* tail, float* state, float* out) {
  const hearth::DeltaCall call = {*layer,     rows,       rows + layer->conv_dim,
                                  steps,      row_stride, 2 * layer->heads,
                                  num_tokens, num_kept,   tail,
                                  state,      out};
  context->workers.pool.run(layer->heads,
                            [&](int64_t head) { context->workers.kernels.delta_head(call, head); });
}

int hearth_step(HearthContext* context, const HearthModel* model, const HearthBatch* batch) try {
  context->step.run(context->workers, *model, *batch);
  return 0;
} catch (const std::bad_alloc&) {
  return 1;
}

int hearth_keep(HearthContext* context, const HearthModel* model, int64_t row, int64_t count) try {
  context->step.keep(context->workers, *model, row, count);
  return 0;
} catch (const std::bad_alloc&) {
  return 1;
}

int hearth_guess(HearthContext* context, const HearthHeads* heads, const float* hidden,
                 int64_t rows, int64_t* tokens, float* probabilities) try {
  context->guess.run(context->workers, *heads, hidden, rows, tokens, probabilities);
  return 0;
} catch (const std::bad_alloc&) {
  return 1;
}

int hearth_draw(HearthContext* context, const float* logits, int64_t rows, int64_t vocab,
                const HearthDraw* draws, int64_t* ids) {
  std::atomic<bool> has_failed{false};
  context->workers.each_row(rows, [&](int64_t row) {
    try {
      ids[row] = hearth::draw(context->workers.kernels, logits + row * vocab, vocab, draws[row]);
    } catch (const std::bad_alloc&) {
      has_failed = true;
    }
  });
  return has_failed ? 1 : 0;
}
