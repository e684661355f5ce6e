"""Queues, user rows, the plan of each step, and the decode thread that runs them."""
