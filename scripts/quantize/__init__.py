"""`hearth quantize`: writes a GGUF file of fewer bits (docs/quantize.md)."""
