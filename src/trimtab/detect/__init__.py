"""Detectors: blocks in, findings out. A family of rules per file; none of them prints or acts.

detector_set.py       all detectors of a run, fed together, and what is known to have happened
trimtab_detectors.py  the detectors of trimtab's rules
textbook.py           the detectors of the textbook's rules
reference.py          a run compared with a run over the same batches
loss/                 the loss, and the norms that lead to a spike
state/                weights, optimizer and numerics
run/                  progress, throughput, text
tools/                what detectors are made of
"""
