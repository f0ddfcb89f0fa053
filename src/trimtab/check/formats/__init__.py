"""One file for each format of a training config."""
