"""Practice: a run that goes wrong, a person who decides, and what became of it."""
