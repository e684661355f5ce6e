"""The side of replicas: discovery, health, balancing, retries, and the requests sent to them."""
