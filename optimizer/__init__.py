"""Chooses accelerators, replicas and batch sizes that meet the service levels at least cost.

A queueing model turns measured speed (alpha, beta, gamma, delta) and load into latencies
(`latency`, `queueing`), `sizing` inverts it, `allocation` prices every (server, accelerator)
pair, and a `solver` chooses. `system` holds the data, `service` owns it in a process, `routes`
speak HTTP. Everything below `service` is pure: values in, values out, any thread.
"""
