#include "layer_inputs.h"

#include <algorithm>
#include <cmath>

#include "activation.h"
#include "grow.h"
#include "model_calls.h"
#include "unpack.h"

namespace hearth {
namespace {

// Returns the floats of a token.
int64_t width(const HearthModel& model) { return model.num_layers * model.inputs.size; }

}  // namespace

void LayerInputs::begin(Workers& workers, const HearthModel& model, const int64_t* ids,
                        const char* rows, int64_t num_tokens) {
  const HearthLayerInputs& inputs = model.inputs;
  const int64_t size = inputs.size;
  grow(inputs_, num_tokens * width(model));
  grow(embedded_, num_tokens * width(model));
  const auto projected = static_cast<float>(1.0 / std::sqrt(static_cast<double>(model.hidden)));
  const auto embedded = static_cast<float>(std::sqrt(static_cast<double>(size)));
  const auto joined = static_cast<float>(std::sqrt(0.5));
  workers.multiply(linear_call(model, inputs.projection, rows, num_tokens, Finish::kStore,
                               projected, inputs_.data()));
  workers.each_row(num_tokens, [&](int64_t token) {
    float* const made = inputs_.data() + token * width(model);
    float* const own = embedded_.data() + token * width(model);
    for (int64_t layer = 0; layer < model.num_layers; ++layer) {
      float* const part = made + layer * size;
      workers.kernels.norm_row(
          {Bits::kFloat32, NormKind::kRms, model.norm_eps, inputs.norm, nullptr, size}, part, part);
    }
    const int64_t id = ids[token] < inputs.num_tokens ? ids[token] : 0;
    unpack_row(static_cast<Bits>(inputs.bits), inputs.embedding, width(model) / kGroup, id, own);
    for (int64_t i = 0; i < width(model); ++i) {
      made[i] = (made[i] + own[i] * embedded) * joined;
    }
  });
}

void LayerInputs::move(const HearthModel& model, int64_t from, int64_t to) {
  std::copy_n(inputs_.data() + from * width(model), width(model),
              inputs_.data() + to * width(model));
}

const std::vector<char>& LayerInputs::gated(Workers& workers, const HearthModel& model,
                                            const HearthLayer& layer, const char* rows,
                                            int64_t num_tokens) {
  const int64_t size = model.inputs.size;
  const int64_t first = (&layer - model.layers) * size;
  grow(gates_, num_tokens * size);
  grow(gated_, num_tokens * row_bytes(model, size));
  workers.multiply(
      linear_call(model, layer.input_gate, rows, num_tokens, Finish::kStore, 1.0f, gates_.data()));
  workers.each_row(num_tokens, [&](int64_t token) {
    float* const gates = gates_.data() + token * size;
    const float* const inputs = inputs_.data() + token * width(model) + first;
    for (int64_t i = 0; i < size; ++i) {
      gates[i] = activated<Scalar>(static_cast<Activation>(model.activation), gates[i]) * inputs[i];
    }
    workers.kernels.prepare_row(bits(model), gates, size / kGroup,
                                gated_.data() + token * row_bytes(model, size));
  });
  return gated_;
}

}  // namespace hearth
