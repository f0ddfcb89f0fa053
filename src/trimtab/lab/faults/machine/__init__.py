"""Faults of hardware, ranks, storage and resumes."""
