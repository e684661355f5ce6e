"""HTTP: what turns requests into calls and results, or errors, into responses."""
