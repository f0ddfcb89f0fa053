"""W&B's run files and chart exports."""
