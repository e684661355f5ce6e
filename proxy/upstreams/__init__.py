"""The replicas: discovery, health checks, balancing, retries, and requests to them."""
