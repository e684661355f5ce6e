"""Commands that serve, and that make tokens and models. `hearth` has the everyday ones."""
