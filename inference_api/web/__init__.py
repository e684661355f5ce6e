"""Request bodies, callers and errors: the HTTP parts that all APIs share."""
