"""Runs replicas on many machines: actuators start and stop them, a controller decides how many.

It uses the other packages only over HTTP and by files.
"""
