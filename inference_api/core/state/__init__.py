"""Paged KV cache: which pages rows hold, and which cached prompt beginnings may be reused."""
