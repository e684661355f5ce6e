#include "activation.h"
#include "attention.h"
#include "delta.h"
#include "heads.h"
#include "isa_256.h"
#include "linear.h"
#include "norm.h"
#include "pack.h"
#include "quantise.h"
#include "short_conv.h"
#include "weigh.h"

namespace hearth {

const Kernels kAvxVnni = {prepare_row,
                          pack_row,
                          norm_row,
                          write_heads<Simd256>,
                          nullptr,
                          nullptr,
                          linear_panels<AvxVnni, Simd256, &kAvxVnniForms>,
                          attend<Simd256>,
                          short_conv,
                          gate<Simd256>,
                          delta_head<Simd256>,
                          largest_of<Simd256>,
                          weigh<Simd256>};

}  // namespace hearth
