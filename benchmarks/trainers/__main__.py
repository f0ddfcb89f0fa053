"""`scripts/bench trainers table FOLDER` and `scripts/bench trainers deepspeed`."""

import sys

from benchmarks.trainers import deepspeed, table

PARTS = {"table": table.main, "deepspeed": deepspeed.main}

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in PARTS:
        sys.exit(f"usage: scripts/bench trainers {'|'.join(PARTS)} [FOLDER] [OPTIONS]")
    PARTS[sys.argv[1]](sys.argv[2:])
