"""Detectors: blocks in, findings out. One rule per file; none of them prints or acts.

detector_set.py       all detectors of a run, fed together
event_schedule.py     what is known to have happened before each record
trimtab_detectors.py  the detectors of trimtab's rules
trust.py              how far values of each quality are trusted
loss/ state/ run/     one detector per file: the loss, the model's state, the run around it
resume/               whether a resume restored everything
reference/            a run compared with a run over the same batches
textbook/             the detectors of the textbook's rules
tools/                baselines, range tests and jump tests that detectors share
"""
