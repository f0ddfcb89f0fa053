"""Trimtab in torchtitan 0.3 by a flag: `python torchtitan_flag.py`, then diagnose runs/titan.

Any other flag of torchtitan can follow. It needs a GPU, or torchtitan's own way to do without.
"""

import json
import subprocess
import sys

TRIMTAB = {"run_dir": "runs/titan", "mode": "protect", "settings": {"live.hang_seconds": 900}}

COMMAND = [
    *(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "1"),
    *("-m", "torchtitan.train", "--module", "llama3", "--config", "llama3_debugmodel"),
    *("--training.steps", "100"),
    *("--override.imports", f"trimtab.integrations.torchtitan.watched={json.dumps(TRIMTAB)}"),
]

if __name__ == "__main__":
    code = subprocess.run([*COMMAND, *sys.argv[1:]], check=False).returncode  # noqa: S603
    print("now: trimtab diagnose runs/titan")
    sys.exit(code)
