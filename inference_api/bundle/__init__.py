"""Bundles: many models (members) behind one server, of which only those in use are in memory."""
