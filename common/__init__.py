"""Code that several packages share. It imports none of them."""

__version__ = "1.1.0"  # the version of all of Hearth; pyproject.toml reads it here
