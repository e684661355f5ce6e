"""A gunicorn worker in which no thread waits for a client to send."""
