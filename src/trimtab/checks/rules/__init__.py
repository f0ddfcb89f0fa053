"""The rules on a training config, one file for each family."""
