#include "isa_neon.h"
#include "linear_forms.h"

namespace hearth {

const LinearPanels kDotProdForms = form_panels<DotProd, Simd128>;

}  // namespace hearth
