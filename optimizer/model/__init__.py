"""One replica under load: its latencies, its queue, its highest rate. Pure."""
