"""A detector (eval_gap.py) and a log reader (logfmt.py) for trimtab."""
