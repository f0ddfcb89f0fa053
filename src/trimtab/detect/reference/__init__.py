"""A run against a reference: an earlier attempt, a sibling run, or recorded losses."""
