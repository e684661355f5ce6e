"""What one replica does under load: latencies, its queue, its highest rate. Pure."""
