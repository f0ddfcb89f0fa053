"""The public runs that figures are measured on: where they are, and how to get them.

manifest.json   of each series: repository, path, commit, checksum, licence, and our labels
fetch.py        fetches them from their repositories and compares the checksums
"""
