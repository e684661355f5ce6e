"""A server's throughput, other engines', and the client that measures them."""
