"""Rules on the loader: repeated batches and rows, ranks, epochs, state."""

from collections import Counter
from itertools import pairwise
from typing import Any

from trimtab.checks.objects.measure.loader import (
    NextEpoch,
    RankBatches,
    batch_fingerprint,
    row_fingerprints,
)
from trimtab.checks.rule import Fault, Level, NotMeasured, advice, error, warning

REPEATED_ROWS = 0.1
"""Share of rows. Corpora have duplicates; deduplicated ones have under 1 % of them (Lee et al. 2022
report 0.4 to 14 % before)."""


@error(
    "PF070",
    "The loader gives the same batch twice",
    source="F03 of the catalogue",
    cannot_see="batches after the first 12",
)
def same_batch(batches: list[Any]) -> Fault | str:
    """The model learns a repeated batch by heart, and the data it replaces is never seen."""
    marks = [batch_fingerprint(batch) for batch in batches]
    if len(marks) < 2:
        raise NotMeasured("the loader gives a single batch")
    for at, mark in enumerate(marks):
        if mark in marks[:at]:
            fix = "look for a sampler that is seeded anew, or an iterator made anew, at each step"
            return Fault(f"batch {at} is batch {marks.index(mark)} again", how=fix)
    return f"{len(marks)} batches, all different"


@warning(
    "PF071",
    "The loader repeats rows",
    source="torch: an IterableDataset must be split over workers by hand; Lee et al. 2022",
    cannot_see="batches after the first 12, and rows that are nearly the same",
)
def same_rows(batches: list[Any]) -> Fault | str:
    """Each worker or shard goes over the same data, so that the run sees it several times and the
    rest never."""
    counts = Counter(mark for batch in batches for mark in row_fingerprints(batch))
    total = sum(counts.values())
    if total < 2:
        raise NotMeasured("the batches have no common first dimension")
    repeated = total - len(counts)
    what = f"{repeated} of {total} rows came before"
    if repeated > REPEATED_ROWS * total:
        return Fault(what, how="split the dataset over workers with get_worker_info()")
    return what


@error(
    "PF072",
    "Ranks get the same data",
    source="F03 of the catalogue; torch's DistributedSampler",
    cannot_see="batches after the first 12; ranks that share data on purpose (tensor parallel)",
)
def rank_data(ranks: RankBatches) -> Fault | str:
    """The gradient is averaged over copies of one batch: N ranks cost N times as much and learn
    what one would."""
    counts = Counter(mark for marks in ranks.fingerprints for mark in set(marks))
    shared = sum(count > 1 for count in counts.values())
    what = f"{shared} of {len(counts)} batches are seen by more than one of "
    what += f"{len(ranks.fingerprints)} ranks"
    if shared:
        return Fault(what, how="use DistributedSampler, or a seed that includes the rank")
    return what


@advice(
    "PF073",
    "The next epoch has the same order",
    source="torch: DistributedSampler repeats its order unless set_epoch is called",
    cannot_see="whether the training loop calls set_epoch",
)
def epoch_order(next_epoch: NextEpoch) -> Fault | str:
    """Batches come in the same company again, which costs quality, and a resume at the wrong epoch
    goes unnoticed."""
    what = f"an epoch has {next_epoch.num_batches} batches"
    if not next_epoch.is_same:
        return f"{what}; the next one begins with different ones"
    what += "; the next one begins with the same ones"
    if next_epoch.changes_by_set_epoch:
        return Fault(f"{what} until set_epoch is called", how="call sampler.set_epoch")
    level = Level.ADVICE if next_epoch.is_sequential else Level.WARNING
    return Fault(
        what, how="shuffle with a generator that is not seeded anew at each epoch", level=level
    )


@error(
    "PF074",
    "The loader does not return to its saved state",
    source="F18 of the catalogue",
    cannot_see="loaders without state_dict; random numbers of worker processes",
)
def loader_state(round_trip: tuple[list[int], list[int]]) -> Fault | str:
    """A resumed run repeats or skips data."""
    wanted, found = round_trip
    if wanted == found:
        return "after its state is loaded the loader goes on with the same batches"
    fix = "save the position, the epoch and the sampler's generator in state_dict"
    return Fault("after its state is loaded the loader gives different batches", how=fix)


@advice(
    "PF075",
    "Batches have different shapes",
    source="torch.compile recompiles for new shapes",
    cannot_see="batches after the first 12",
)
def shapes(batches: list[Any]) -> Fault | str:
    """Each new shape costs a compilation, and a mean of losses weighs short batches more."""
    sizes = [len(list(row_fingerprints(batch))) for batch in batches]
    if any(one != other for one, other in pairwise(sizes[:-1])):
        what = f"between {min(sizes)} and {max(sizes)} rows in a batch"
        return Fault(what, how="fill batches to one size")
    return f"{sizes[0]} rows in each batch"
