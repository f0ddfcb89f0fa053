"""One file for each text log format."""
