"""The search for shares of a split model."""
