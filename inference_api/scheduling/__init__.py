"""Which row runs whom and what the next step carries: queues, rows, the decode thread."""
