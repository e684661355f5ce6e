"""`make bench-…`: Hearth's own speed, each beside a peer in the same run."""
