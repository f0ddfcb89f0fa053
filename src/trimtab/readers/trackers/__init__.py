"""Logs of experiment trackers.

`wandb`, `tensorboard`, `databases` (SQLite of MLflow and trackio), `mlflow_files`: the
formats. `points`: rows of values that were logged one by one. `conventions`: what several trackers
do alike. `tfrecord`, `protowire`: binary encodings.
"""
