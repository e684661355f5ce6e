"""Commands: to serve, to make tokens and models, to tune. `hearth` has those of every day."""
