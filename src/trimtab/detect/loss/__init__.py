"""Detectors of the loss and of the gradient norm beside it."""
