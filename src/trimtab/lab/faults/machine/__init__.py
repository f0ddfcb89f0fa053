"""Faults in hardware, ranks, the data loader and resumes: one file per fault, named by number."""
