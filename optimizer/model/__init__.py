"""Models one replica under load: latencies, queue, highest rate. Pure."""
