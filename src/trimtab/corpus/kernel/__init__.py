"""The counting itself: numpy on arrays of token ids.

counts.py      occurrences of each token
repeats.py     short phrases that follow themselves over and over
documents.py   the documents of a stream of tokens: lengths and hashes
"""
