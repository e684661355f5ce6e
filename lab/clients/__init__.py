"""Agents and SDKs, unchanged, at a running server: `make test-clients` (docs/clients.md)."""
