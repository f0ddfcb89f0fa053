"""A detector (eval_gap.py), a log reader (logfmt.py) and a checkpointer (one_file.py)."""
