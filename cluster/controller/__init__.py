"""From measurements to replicas: collect, ask the optimizer, stabilise, actuate."""
