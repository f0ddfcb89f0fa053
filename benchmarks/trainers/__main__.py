"""`scripts/bench trainers table|recover FOLDER`."""

import sys

from benchmarks.trainers import recover, table

PARTS = {"table": table.main, "recover": recover.main}

if __name__ == "__main__":
    if len(sys.argv) < 2 or sys.argv[1] not in PARTS:
        sys.exit(f"usage: scripts/bench trainers {'|'.join(PARTS)} FOLDER [OPTIONS]")
    PARTS[sys.argv[1]](sys.argv[2:])
