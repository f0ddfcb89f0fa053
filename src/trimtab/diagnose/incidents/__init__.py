"""Findings grouped into incidents: onset, peak, end and class."""
