"""Left out without DeepSpeed: pip install --group deepspeed."""

import importlib.util

collect_ignore_glob = [] if importlib.util.find_spec("deepspeed") else ["test_*.py"]
