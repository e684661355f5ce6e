"""Measure, fit, plan: what a plan from measurements is worth."""
