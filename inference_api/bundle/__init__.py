"""Bundles: many models, their members, behind one server, of which those in use are in memory."""
