"""The life of a request: queues, user rows, steps, tokens, the decode thread."""
