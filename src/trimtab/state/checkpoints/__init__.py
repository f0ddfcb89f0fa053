"""Checkpoints that can be trusted: verified before they are opened, judged before they are used.

run_checkpoints.py    Checkpoints: to save a run, and to resume it from the best one
content.py            what a checkpoint holds, by names that fit any layout of ranks; torch's DCP
rank_state.py         what each rank saves for itself, as values that are read without unpickling
data_cursor.py        where the run is in its data, and how to get there again
logical_state.py      what any checkpoint holds, by names, as digests: are two of them the same?
formats.py            their entries: torch.distributed.checkpoint, safetensors, torch.save, folders
store.py              save, verify and load, on all ranks together; a save is complete or invisible
index.py              checkpoints.json: which checkpoints a run has, and the verdict on each
manifest.py           size and checksum of every file; links to the files of a trainer
verdicts.py           unproven, proven or bad: a pure function of a run's attempts and incidents

index, manifest and verdicts work without torch.
"""
