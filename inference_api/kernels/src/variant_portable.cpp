#include "attention.h"
#include "isa_portable.h"
#include "linear.h"
#include "pack.h"
#include "quantise.h"

namespace hearth {

const Kernels kPortable = {quantise_row, pack_row, linear_panels<Portable>, attend<Scalar>};

}  // namespace hearth
