"""The detectors of the textbook rule set."""
