"""Which accelerators serve which models how fast, by what was published."""
