"""OpenAI's `/v1/completions` and `/v1/chat/completions`, and vLLM's fields beside them."""
