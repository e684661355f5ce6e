"""Between text and token ids: tokenizer, chat templates, constraints."""
