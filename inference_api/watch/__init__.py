"""Observes a server: metrics, traces, logs, health and the dashboard."""
