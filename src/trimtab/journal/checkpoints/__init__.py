"""The checkpoints of a run as files: which there are, what each holds, and the verdict on each.

index.py      checkpoints.json, written by the run; verdicts.json, written by its observer
manifest.py   size and checksum of every file; links to the files of a trainer
"""
