"""The HTTP APIs: each has a reader of bodies and a writer of answers around one shared path."""
