"""Files of tokens or text, one file per format. Sizes and headers are checked before use.

opening.py    a path -> the file of its format
flat.py       raw .bin (nanoGPT), .bin with a header (llm.c), .npy without pickle
megatron.py   .bin with an .idx
rows.py       rows of text or token ids -> arrays
arrow.py      Parquet, and the Arrow files of HF datasets
jsonl.py      JSON lines
"""
