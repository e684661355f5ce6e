"""What all packages share and none owns. Imports none of them."""

__version__ = "1.1.0"  # the version of all of Hearth; pyproject.toml reads it here
