"""Writing a journal: a bounded queue, one open file, and sealing it into columns."""
