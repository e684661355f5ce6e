#include "isa_256.h"
#include "linear_forms.h"

namespace hearth {

const LinearPanels kAvxVnniForms = form_panels<AvxVnni, Simd256>;

}  // namespace hearth
