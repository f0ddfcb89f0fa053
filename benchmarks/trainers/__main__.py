"""`scripts/bench trainers table FOLDER`."""

import sys

from benchmarks.trainers import table

if __name__ == "__main__":
    if sys.argv[1:2] != ["table"]:
        sys.exit("usage: scripts/bench trainers table FOLDER [OPTIONS]")
    table.main(sys.argv[2:])
