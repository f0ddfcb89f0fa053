"""What only several ranks can show: the same data, and unequal numbers of targets."""

from benchmarks.preflight.architectures import text
from benchmarks.preflight.faults import healthy
from tests.ranks import run_ranks

from trimtab.check.catalogue import RULES
from trimtab.preflight.catalogue import CHECKS
from trimtab.preflight.run import preflight

ONLY = ({*CHECKS, *RULES}) - {"PF052", "PF072"}


def find(rank: int, fault: str) -> tuple[str, ...]:
    setup = healthy()
    setup["loader"] = text(0 if fault == "same data" else rank)
    if fault == "few targets" and rank == 1:
        for batch in setup["loader"]:
            batch["labels"][:, 3:] = -100
        setup["model"].head.weight.data.mul_(5)
    return preflight(**setup, off=ONLY).ids


def test_ranks_with_the_same_data_are_found_on_every_rank() -> None:
    assert run_ranks(find, 2, "same data") == [("PF072",), ("PF072",)]


def test_ranks_with_unequal_targets_are_found() -> None:
    assert run_ranks(find, 2, "few targets") == [("PF052",), ("PF052",)]


def test_ranks_with_their_own_data_have_no_finding() -> None:
    assert run_ranks(find, 2, "none") == [(), ()]
