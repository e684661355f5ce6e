"""Bundles: many experts behind one server, of which those in use are in memory."""
