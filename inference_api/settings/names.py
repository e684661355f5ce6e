"""Names of models as clients send them, and patterns of names. Pure functions."""

ANY = "*"
MAX_NAME_CHARS = 256


def is_match(name: str, pattern: str) -> bool:
    """Whether a name is the pattern, in which every `*` stands for any characters or none.

    Each part of the pattern is looked for once, so that no name takes long.
    """
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
