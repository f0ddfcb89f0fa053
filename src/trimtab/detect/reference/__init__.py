"""A run compared with a run over the same batches.

reference.py        the detector: where a signal and its reference part
gap.py              how far one signal has moved away from its reference
earlier_attempt.py  the losses of the attempt before, as a reference
side_by_side.py     the values of another run in columns beside this one
"""
