"""Connections of clients, under gunicorn: no thread waits for a client to send."""
