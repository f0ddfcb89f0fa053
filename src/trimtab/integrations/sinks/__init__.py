"""Sinks: one thin file per tracker. They run in the shipper, never in the training process.

mlflow_sink.py        MLflow, by its REST interface; no package
wandb_sink.py         W&B, in a run of its own
tensorboard_sink.py   TensorBoard, a folder per attempt; no package
prometheus_sink.py    Prometheus: pulled on loopback, or as a text file; no package
prometheus/           alert rules and a Grafana dashboard
rows.py               blocks as rows with the names of trackers
"""
