"""vLLM's tokenizer routes."""
