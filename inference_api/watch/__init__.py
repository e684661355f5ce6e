"""Observes a server: metrics, traces, logs, health, the dashboard."""
