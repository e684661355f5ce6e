"""Questions about a system and its answer that change neither: why, what if, in which steps."""
