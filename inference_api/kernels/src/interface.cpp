#include "interface.h"

#include <algorithm>
#include <atomic>
#include <new>
#include <system_error>
#include <vector>

#include "half.h"
#include "kernels.h"
#include "pool.h"

#if defined(__x86_64__)
#include <cpuid.h>
#endif

using hearth::ActivationGroup;
using hearth::AttentionCall;
using hearth::AttentionTask;
using hearth::Bits;
using hearth::Int4Block;
using hearth::Int8Block;
using hearth::kGroup;
using hearth::kPanel;
using hearth::kQuad;
using hearth::SourceType;

struct HearthContext {
  HearthContext(const hearth::Kernels& kernels, int num_threads)
      : kernels(kernels), num_threads(num_threads), pool(num_threads) {}

  const hearth::Kernels& kernels;
  const int64_t num_threads;
  hearth::Pool pool;
  std::vector<ActivationGroup> activations;  // of the current call; keeps its memory
  std::vector<AttentionTask> attention_tasks;
};

namespace {

struct Variant {
  const char* name;
  const hearth::Kernels* kernels;
  bool (*is_supported)();
};

#if defined(__x86_64__)
bool has_avx2() {  // whatever has it has F16C too
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
}
bool has_avxvnni() {  // Clang's __builtin_cpu_supports does not know the name
  constexpr unsigned kLeaf = 7;
  constexpr unsigned kSubleaf = 1;
  constexpr unsigned kAvxVnniBit = 1u << 4;  // of eax
  unsigned eax = 0;
  unsigned ebx = 0;
  unsigned ecx = 0;
  unsigned edx = 0;
  return has_avx2() && __get_cpuid_count(kLeaf, kSubleaf, &eax, &ebx, &ecx, &edx) != 0 &&
         (eax & kAvxVnniBit) != 0;
}
bool has_avx512vnni() {
  return has_avx2() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
         __builtin_cpu_supports("avx512vl") && __builtin_cpu_supports("avx512vnni");
}
#endif

constexpr Variant kVariants[] = {
#if defined(__x86_64__)
    {"avx512vnni", &hearth::kAvx512Vnni, has_avx512vnni},
    {"avxvnni", &hearth::kAvxVnni, has_avxvnni},
    {"avx2", &hearth::kAvx2, has_avx2},
#endif
    {"portable", &hearth::kPortable, [] { return true; }},
};
constexpr int kNumVariants = sizeof(kVariants) / sizeof(kVariants[0]);

// Tasks so small that waking threads costs more than they save stay on the calling thread.
constexpr int64_t kMinRowsToShare = 8;

// Panels that follow each other make a task: few enough for their weights to be prefetched, and
// many enough for a thread that was held up not to be waited for.
constexpr int64_t kTasksPerThread = 8;

int64_t num_panels(int64_t outputs) { return (outputs + kPanel - 1) / kPanel; }

int64_t block_bytes(Bits bits) {
  return bits == Bits::kInt8 ? sizeof(Int8Block) : sizeof(Int4Block);
}

int64_t type_bytes(SourceType type) { return type == SourceType::kFloat32 ? 4 : 2; }

int unpacked(const Int8Block& block, int64_t lane, int64_t i) {
  return block.values[i / kQuad][lane][i % kQuad] - hearth::kInt8Offset;
}

int unpacked(const Int4Block& block, int64_t lane, int64_t i) {
  const int64_t quad = i / kQuad;
  const int pair = block.pairs[quad / 2][lane][i % kQuad];
  return (quad % 2 == 0 ? pair & 0x0f : pair >> 4) - hearth::kInt4Offset;
}

template <class Block>
void unpack(const Block* blocks, int64_t outputs, int64_t inputs, float* weights) {
  const int64_t num_groups = inputs / kGroup;
  for (int64_t output = 0; output < outputs; ++output) {
    for (int64_t input = 0; input < inputs; ++input) {
      const Block& block = blocks[output / kPanel * num_groups + input / kGroup];
      const auto value = static_cast<float>(unpacked(block, output % kPanel, input % kGroup));
      const float scale = hearth::half_to_float(block.scales[output % kPanel]);
      weights[output * inputs + input] = value * scale;
    }
  }
}

void quantise(HearthContext& context, const float* x, int64_t rows, int64_t num_groups) {
  context.activations.resize(static_cast<size_t>(rows * num_groups));
  ActivationGroup* groups = context.activations.data();
  const auto quantise_row = [&](int64_t row) {
    const float* from = x + row * num_groups * kGroup;
    context.kernels.quantise_row(from, num_groups, groups + row * num_groups);
  };
  if (rows >= kMinRowsToShare) {
    context.pool.run(rows, quantise_row);
    return;
  }
  for (int64_t row = 0; row < rows; ++row) {
    quantise_row(row);
  }
}

// Cuts a call into tasks: runs of tokens of one cache row, times heads, times parts of a head's
// groups where there are too many.
void plan(const AttentionCall& call, std::vector<AttentionTask>& tasks) {
  tasks.clear();
  const int64_t groups = std::min<int64_t>(call.num_groups, hearth::kMaxQueries);
  const int64_t max_tokens = hearth::kMaxQueries / groups;
  int64_t first = 0;
  while (first < call.num_tokens) {
    int64_t end = first + 1;
    while (end < call.num_tokens && end - first < max_tokens &&
           call.rows[end] == call.rows[first]) {
      ++end;
    }
    for (int64_t head = 0; head < call.num_kv_heads; ++head) {
      for (int64_t group = 0; group < call.num_groups; group += groups) {
        const int64_t count = std::min(groups, call.num_groups - group);
        tasks.push_back({first, end - first, head, group, count});
      }
    }
    first = end;
  }
}

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
  return num_panels(outputs) * (inputs / kGroup) * block_bytes(static_cast<Bits>(bits));
}

int64_t hearth_pack(HearthContext* context, int bits, int type, const void* weights, int64_t first,
                    int64_t count, int64_t inputs, void* packed) {
  const auto kind = static_cast<Bits>(bits);
  const auto source = static_cast<SourceType>(type);
  const int64_t num_groups = inputs / kGroup;
  std::atomic<int64_t> faulty{-1};
  context->pool.run(count, [&](int64_t row) {
    const int64_t output = first + row;
    const auto* from = static_cast<const char*>(weights) + row * inputs * type_bytes(source);
    auto* to = static_cast<char*>(packed) + output / kPanel * num_groups * block_bytes(kind);
    const auto lane = static_cast<int>(output % kPanel);
    if (!context->kernels.pack_row(kind, source, from, num_groups, lane, to)) {
      faulty = row;
    }
  });
  return faulty;
}

void hearth_unpack(int bits, const void* packed, int64_t outputs, int64_t inputs, float* weights) {
  if (static_cast<Bits>(bits) == Bits::kInt8) {
    unpack(static_cast<const Int8Block*>(packed), outputs, inputs, weights);
  } else {
    unpack(static_cast<const Int4Block*>(packed), outputs, inputs, weights);
  }
}

int hearth_linear(HearthContext* context, int bits, const void* packed, const float* bias,
                  const float* x, int64_t rows, int64_t outputs, int64_t inputs, float* out) try {
  const int64_t num_groups = inputs / kGroup;
  quantise(*context, x, rows, num_groups);
  const hearth::LinearCall call = {static_cast<Bits>(bits),     packed, bias, outputs, num_groups,
                                   context->activations.data(), rows,   out};
  const int64_t panels = num_panels(outputs);
  const int64_t tasks = std::min(panels, context->num_threads * kTasksPerThread);
  context->pool.run(tasks, [&](int64_t task) {
    context->kernels.linear_panels(call, panels * task / tasks, panels * (task + 1) / tasks);
  });
  return 0;
} catch (const std::bad_alloc&) {
  return 1;
}

int hearth_attention(HearthContext* context, const float* queries, int64_t query_stride,
                     const float* keys, const float* values, int64_t row_stride,
                     int64_t head_stride, const int64_t* rows, const int64_t* lengths,
                     int64_t tokens, int64_t kv_heads, int64_t groups, int64_t head_dim,
                     int64_t window, float scale, float* out) try {
  const AttentionCall call = {queries,     query_stride, keys,    values, row_stride,
                              head_stride, rows,         lengths, tokens, kv_heads,
                              groups,      head_dim,     window,  scale,  out};
  std::vector<AttentionTask>& tasks = context->attention_tasks;
  plan(call, tasks);
  context->pool.run(static_cast<int64_t>(tasks.size()), [&](int64_t index) {
    context->kernels.attend(call, tasks[static_cast<size_t>(index)]);
  });
  return 0;
} catch (const std::bad_alloc&) {
  return 1;
}
