"""The order in which runs are measured: what matters most comes first."""

from collections.abc import Iterator, Sequence

from benchmarks.recover.arms import Arm
from benchmarks.recover.cases import Case

FIRST_SEEDS, OTHER_SEEDS = 3, 1
"""Seeds of the recovering arm that come before everything else, and seeds of the other arms that
come before the rest."""

MAX_OTHER_SEEDS = 5
"""Seeds of the other arms at most: what they do is known, and each costs as much as ours."""

OTHER_ARMS = (Arm.UNGUARDED, Arm.PROTECT, Arm.BY_HAND)

Job = tuple[Case, Arm, int]


def jobs(faults: Sequence[Case], healthy: Sequence[Case], seeds: Sequence[int]) -> Iterator[Job]:
    """Every run, once; runs that share an outcome may come several times."""
    first = [case for case in faults if not case.is_late]
    late = [case for case in faults if case.is_late]
    yield from _compared(first, seeds[:FIRST_SEEDS])
    yield from _others(first, seeds[:OTHER_SEEDS])
    yield from _compared(late, seeds[:OTHER_SEEDS])
    yield from _compared(first, seeds[FIRST_SEEDS:])
    yield from _compared(healthy, seeds)
    yield from _others(late, seeds[:OTHER_SEEDS])
    yield from _compared(late, seeds[OTHER_SEEDS:])
    yield from _others(faults, seeds[OTHER_SEEDS:MAX_OTHER_SEEDS])


def _compared(cases: Sequence[Case], seeds: Sequence[int]) -> Iterator[Job]:
    """The recovering run and its clean twin."""
    for seed in seeds:
        for case in cases:
            yield case, Arm.CLEAN, seed
            yield case, Arm.RECOVER, seed


def _others(cases: Sequence[Case], seeds: Sequence[int]) -> Iterator[Job]:
    for seed in seeds:
        for case in cases:
            for arm in (Arm.CLEAN, *OTHER_ARMS):
                yield case, arm, seed
