"""Files of weights packed for the kernels, which are written once and then mapped."""
