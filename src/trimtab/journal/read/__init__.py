"""Reading a journal: open and sealed files into one block, at once or as it grows."""
