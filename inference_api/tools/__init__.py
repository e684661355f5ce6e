"""What models write besides an answer's text, calls of tools and thoughts: read, and asked for."""
