"""The order in which runs are measured: what matters most comes first."""

from collections.abc import Iterator, Sequence

from benchmarks.recover.arms import Arm
from benchmarks.recover.cases import Case

FAULT_SEEDS = 10
FIRST_SEEDS, LATE_SEEDS, OTHER_SEEDS = 6, 2, 1
"""Seeds of the faults, of the late ones and of the other arms that come before the rest of them."""

MAX_OTHER_SEEDS = 5
"""Seeds of the other arms at most: what they do is known, and each costs as much as ours."""

TWIN_SEEDS = 1
"""Seeds of healthy runs that are compared with a twin in any case. A run in which nothing was done
has the bits of its twin, so that of the others is trained only if something was done."""

OTHER_ARMS = (Arm.UNGUARDED, Arm.PROTECT, Arm.BY_HAND)

Job = tuple[Case, Arm, int]


def jobs(faults: Sequence[Case], healthy: Sequence[Case], seeds: Sequence[int]) -> Iterator[Job]:
    """Every run, once; runs that share an outcome may come several times."""
    first = [case for case in faults if not case.is_late]
    late = [case for case in faults if case.is_late]
    few = seeds[:FAULT_SEEDS]
    yield from _compared(first, few[:FIRST_SEEDS])
    yield from _compared(late, few[:LATE_SEEDS])
    for seed in seeds:
        for case in healthy:
            yield case, Arm.RECOVER, seed
            if seed in seeds[:TWIN_SEEDS]:
                yield case, Arm.CLEAN, seed
    yield from _compared(first, few[FIRST_SEEDS:])
    yield from _others(first, few[:OTHER_SEEDS])
    yield from _others(late, few[:OTHER_SEEDS])
    yield from _compared(late, few[LATE_SEEDS:])
    yield from _others(faults, few[OTHER_SEEDS:MAX_OTHER_SEEDS])


def has_wrong_schedule(case: Case) -> bool:
    """Whether it is compared with a constant rate."""
    return case.kind == "F24"


def _compared(cases: Sequence[Case], seeds: Sequence[int]) -> Iterator[Job]:
    """The recovering run with what it is compared with: its clean twin, or a constant rate too."""
    for seed in seeds:
        for case in cases:
            yield case, Arm.CLEAN, seed
            yield case, Arm.RECOVER, seed
            if has_wrong_schedule(case):
                yield case, Arm.CONSTANT_RATE, seed


def _others(cases: Sequence[Case], seeds: Sequence[int]) -> Iterator[Job]:
    for seed in seeds:
        for case in cases:
            for arm in (Arm.CLEAN, *OTHER_ARMS):
                yield case, arm, seed
