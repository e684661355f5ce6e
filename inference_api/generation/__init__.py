"""A generation seen from its request thread: from a valid body to pieces of text."""
