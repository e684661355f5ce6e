"""The native routes: text in, a stream of text out."""
