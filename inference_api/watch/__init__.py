"""What people and machines see of a server: metrics, traces, the dashboard, health."""
