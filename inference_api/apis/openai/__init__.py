"""OpenAI's `/v1/completions` and `/v1/chat/completions`, with vLLM's extra fields."""
