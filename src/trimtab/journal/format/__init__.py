"""The journal on disk: lines, entries, the header of a sealed segment, file names, damage."""
