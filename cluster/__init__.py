"""Many replicas on many machines: actuators start and stop them, a controller says how many.

Meets the other packages over HTTP and by files only.
"""
