"""Trackers that keep their points in SQLite."""
