"""Questions that change neither a system nor its answer: explanations, queries, plans, sweeps."""
