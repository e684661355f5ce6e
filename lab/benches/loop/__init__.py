"""Benches of the loop measure, fit, plan: they check plans made from measurements."""
