#include "activation.h"
#include "attention.h"
#include "delta.h"
#include "heads.h"
#include "isa_portable.h"
#include "linear.h"
#include "norm.h"
#include "pack.h"
#include "quantise.h"
#include "short_conv.h"
#include "weigh.h"

namespace hearth {

const Kernels kPortable = {prepare_row,
                           pack_row,
                           norm_row,
                           write_heads<Scalar>,
                           nullptr,
                           nullptr,
                           linear_panels<Portable, Scalar, &kPortableForms>,
                           attend<Scalar>,
                           short_conv,
                           gate<Scalar>,
                           delta_head<Scalar>,
                           largest_of<Scalar>,
                           weigh<Scalar>};

}  // namespace hearth
