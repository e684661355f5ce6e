"""Benches (`make bench-…`) that compare Hearth's speed with a peer's in the same run."""
