"""Real ranks for tests: those of the lab."""

from trimtab.lab.local_ranks import run_ranks

__all__ = ["run_ranks"]
