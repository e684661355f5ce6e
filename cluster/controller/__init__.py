"""The controller: reads measurements, asks the optimizer, stabilises, and scales replicas."""
