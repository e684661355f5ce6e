"""What people and machines see of the server: metrics, traces, logs, its live state."""
