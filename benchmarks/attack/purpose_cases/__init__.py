"""Changes that users make on purpose in the middle of a run, each with a loop of its own."""

from benchmarks.attack.purpose_cases import models, optimizer, parts, ranks, weights
from benchmarks.attack.purpose_cases.loop import CASES, Loop

__all__ = ["CASES", "Loop", "models", "optimizer", "parts", "ranks", "weights"]
