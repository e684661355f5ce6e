"""Reads models: configuration, tokenizer and weights, from safetensors, GGUF and packed files."""
