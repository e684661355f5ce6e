"""Bodies and errors of requests, whatever API they are of."""
