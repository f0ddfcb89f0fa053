"""Config formats: one file per format, and the parts that they share (values, line numbers)."""
