"""Hypotheses about the cause of an incident."""
