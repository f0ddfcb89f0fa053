"""`scripts/bench trainers table FOLDER`."""

import sys

from benchmarks.trainers import table

PARTS = {"table": table.main}

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in PARTS:
        sys.exit(f"usage: scripts/bench trainers {'|'.join(PARTS)} FOLDER [OPTIONS]")
    PARTS[sys.argv[1]](sys.argv[2:])
