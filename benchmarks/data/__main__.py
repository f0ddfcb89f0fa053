"""Fetch the public runs that tests and benchmarks are measured on: `scripts/data [--only TEXT]`.

They come from the repositories that published them, each at the commit that was labelled, and are
refused unless their checksum is right. They go to `$TRIMTAB_DATA`, or to `../shared/data` beside
the checkout, where the tests look for them. The published incidents (stories) are not among them.
"""

import argparse
import sys

from tests.kit.public_runs import DATA

from benchmarks.data.fetch import API, RAW, fetch_all, read_manifest


def main() -> int:
    """Fetch; the exit code is 1 if a series is missing."""
    parser = argparse.ArgumentParser(prog="scripts/data", description=__doc__)
    parser.add_argument("--only", metavar="TEXT", default="", help="series with TEXT in their name")
    parser.add_argument("--raw", default=RAW, help="a mirror of raw.githubusercontent.com")
    parser.add_argument("--api", default=API, help="a mirror of api.github.com/repos")
    chosen = parser.parse_args()
    series = [one for one in read_manifest() if chosen.only in one.name]
    done, failed = fetch_all(series, DATA, chosen.raw, chosen.api)
    for line in failed:
        print(line, file=sys.stderr)
    print(f"{len(done)} of {len(series)} series are in {DATA}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
