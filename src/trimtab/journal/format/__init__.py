"""The bytes of a journal: one line, the header of a sealed file, entries, file names, damage."""
