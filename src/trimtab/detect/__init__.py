"""Detectors: blocks in, findings out. One rule per file; none of them prints or acts."""
