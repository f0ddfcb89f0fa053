"""Reproducible runs with a known truth: scenarios, trials, suites and their clean twins."""
