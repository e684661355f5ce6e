"""The engine: what turns token ids into token ids. The decode thread alone calls it."""
