"""Detectors of the course of a run.

progress.py    counts, batches and a decay that run backwards
throughput.py  steps that stall, and a pace that falls for good
token_mix.py   data that has become a different kind of text
"""
