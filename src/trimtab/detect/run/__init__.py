"""Detectors of how the run is executed: counters, data, throughput, schedule."""
