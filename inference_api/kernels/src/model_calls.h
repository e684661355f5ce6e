// Makes calls from a model's description.
#pragma once

#include "interface.h"
#include "kernels.h"
#include "workers.h"

namespace hearth {
namespace {

inline Bits bits(const HearthModel& model) { return static_cast<Bits>(model.bits); }

// Returns the bytes of a row of `size` activations in the form that products take.
inline int64_t row_bytes(const HearthModel& model, int64_t size) {
  return size / kGroup * group_bytes(bits(model));
}

// Returns the pages of rows, with the table of the layer's group.
inline HearthPages pages_of(const HearthModel& model, const HearthLayer& layer) {
  HearthPages pages = model.pages;
  pages.tables += layer.table_offset;
  return pages;
}

inline NormCall norm_call(const HearthModel& model, const HearthNorm& norm) {
  return {bits(model), static_cast<NormKind>(model.norm), model.norm_eps, norm.weight, norm.bias,
          model.hidden};
}

// Returns matrix `index` of a stack of `count`.
inline HearthLinear one_of(const HearthLinear& stack, int64_t count, int64_t index) {
  const int64_t outputs = stack.outputs / count;
  const int64_t bytes = hearth_packed_bytes(stack.bits, outputs, stack.inputs);
  return {static_cast<const char*>(stack.packed) + index * bytes,
          stack.bias == nullptr ? nullptr : stack.bias + index * outputs, outputs, stack.inputs,
          stack.bits};
}

// Multiplies rows of floats, which `prepared` keeps in the form that products take.
inline void multiply_floats(Workers& workers, const HearthLinear& linear, const float* x,
                            int64_t num_rows, std::vector<char>& prepared, float* out) {
  LinearCall call = {static_cast<Bits>(linear.bits)};
  workers.prepare(call.bits, x, linear.inputs, num_rows, prepared);
  call.blocks = linear.packed;
  call.bias = linear.bias;
  call.num_outputs = linear.outputs;
  call.num_groups = linear.inputs / kGroup;
  call.rows = prepared.data();
  call.num_rows = num_rows;
  call.factor = 1.0f;
  call.out = out;
  call.out_stride = linear.outputs;
  workers.multiply(call);
}

inline LinearCall linear_call(const HearthModel& model, const HearthLinear& linear,
                              const void* rows, int64_t num_rows, Finish finish, float factor,
                              float* out) {
  return {static_cast<Bits>(linear.bits),
          linear.packed,
          linear.bias,
          linear.outputs,
          linear.inputs / kGroup,
          rows,
          num_rows,
          nullptr,
          finish,
          factor,
          out,
          linear.outputs,
          static_cast<Activation>(model.activation),
          {model.swiglu_limit, model.swiglu_alpha},
          false,
          nullptr,
          nullptr,
          nullptr};
}

}  // namespace
}  // namespace hearth
