"""Panels: what can be read off the records about one incident, one yes-or-no each."""
