"""The engine alone: steps, kernels, forms of weights, what a model answers."""
