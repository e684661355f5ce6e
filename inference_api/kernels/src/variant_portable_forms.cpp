#include "isa_portable.h"
#include "linear_forms.h"

namespace hearth {

const LinearPanels kPortableForms = form_panels<Portable, Scalar>;

}  // namespace hearth
