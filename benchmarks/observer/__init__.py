"""The observer: what is there after any end of a run, the same verdict as `diagnose`, its cost."""
