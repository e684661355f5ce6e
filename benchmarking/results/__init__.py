"""The documented files of a run, made from its raw records."""
