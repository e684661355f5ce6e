"""Commands to serve, to make tokens and models, and to tune. `hearth` has the everyday ones."""
