"""Every way to decode, beside other engines, on ordinary prompts."""
