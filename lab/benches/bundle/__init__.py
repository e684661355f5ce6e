"""A bundle of experts: throughput, waits and switches."""
