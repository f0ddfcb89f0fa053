"""Measurements that take long; their last results are in RESULTS.md."""
