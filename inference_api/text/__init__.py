"""Between text and token ids: tokenizer, chat templates, constraints. Loads no torch."""
