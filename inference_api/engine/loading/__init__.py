"""From files and hubs to checked weights: safetensors, GGUF, tokenizers, configurations."""
