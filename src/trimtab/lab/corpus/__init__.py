"""The lab's data.

text.py        documents from the standard library's source, labelled by source
tokenizer.py   a byte-level BPE
shards.py      TokenCorpus: the token files of a corpus
tokens.py      prepare_corpus: builds the token files once, then loads them from the cache
data.py        batches as a function of their data position
"""
