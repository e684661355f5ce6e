"""Bodies of requests: how much is read, which fields there are, what is refused."""
