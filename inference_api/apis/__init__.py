"""The APIs: each a reader and a writer around one path of answers."""
