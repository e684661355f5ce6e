"""`hearth quantize`: writes a GGUF file of fewer bits (docs/settings.md, "Fewer bits")."""
