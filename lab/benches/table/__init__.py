"""A bench of all ways to decode, and of other engines, on ordinary prompts."""
