#include "isa_neon.h"
#include "linear_forms.h"

namespace hearth {

const LinearPanels kI8mmForms = form_panels<I8mm, Simd128>;

}  // namespace hearth
