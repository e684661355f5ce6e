"""Benches of a server's throughput, of other engines, and of the client that measures them."""
