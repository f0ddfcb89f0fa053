"""Detectors of the state of model and optimizer: non-finite values, jumps, trends, loss scale."""
