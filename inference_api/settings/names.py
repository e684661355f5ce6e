"""Matches model names in requests with patterns. Pure functions."""

ANY = "*"
MAX_NAME_CHARS = 256


def is_match(name: str, pattern: str) -> bool:
    """Returns whether a name matches the pattern, in which `*` stands for any number of characters.
    Each part of the pattern is searched for once, so that no name takes long."""
    begin, *parts = pattern.split(ANY)
    if not parts:
        return name == pattern
    if len(name) > MAX_NAME_CHARS or not name.startswith(begin):
        return False
    at, end = len(begin), parts.pop()
    for part in parts:
        found = name.find(part, at)
        if found < 0:
            return False
        at = found + len(part)
    return name.endswith(end) and at + len(end) <= len(name)
