"""What experiment trackers leave on disk: one file per format, and the parts that they share."""
