"""Real ranks for tests: those of the lab."""

from trimtab.lab.trainer.local_ranks import run_ranks

__all__ = ["run_ranks"]
