"""The lab's data.

text.py     documents from the standard library's source, labelled by source
tokens.py   prepare_corpus: trains a byte-level BPE, builds the token files once, caches them
data.py     TokenCorpus, the token files; batches as a function of their data position
"""
