"""Bundles: many models (members) on one server, which keeps only those in use in memory."""
