"""Request bodies: bounds before parsing, fields, refusals."""
