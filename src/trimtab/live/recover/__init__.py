"""Recovery in the process."""
