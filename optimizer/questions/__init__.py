"""Questions that change no state: explanations, queries, plans, sweeps."""
