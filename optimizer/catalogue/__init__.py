"""How fast accelerators serve models, from published facts and measurements."""
