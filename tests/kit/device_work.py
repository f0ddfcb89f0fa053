"""What a guard makes a GPU do, on paper: counted on a pretended device, shown in docs/limits.md.

launch            an operation that runs a kernel: no view, no allocation
bytes read        of the tensors that launches are given
copy to the host  of a tensor that is on the device
wait              a value that is read on the host, or a copy that both sides wait for
"""

import re
import statistics
import tempfile
from collections.abc import Iterable, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves

from tests.kit.pretend_device import pretend_device
from trimtab.core.signals import PARAM_NORM
from trimtab.journal import RunDirectory, read_journal
from trimtab.selftest import promises
from trimtab.selftest.loop import SmallModel, Training, batches
from trimtab.selftest.promises import READS, Counting, is_launch
from trimtab.selftest.run import MODES

_COPIES = {"aten::copy_", "aten::_foreach_copy_"}
_WRITES_FIRST = _COPIES | {"aten::fill_", "aten::zero_", "aten::_foreach_zero_"}
"""Operations that only write their first argument."""


class Work(NamedTuple):
    """What a device has to do."""

    operations: int
    launches: int
    bytes_read: int
    copies_to_host: int
    waits: int

    def above(self, other: "Work") -> "Work":
        """Return what it is more than the other."""
        return Work(*(one - less for one, less in zip(self, other, strict=True)))


NOTHING = Work(0, 0, 0, 0, 0)


class WorkCounting(Counting):
    """Counts what the operations inside it make a device do."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self._device = device.type
        self._works: list[Work] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        found = super().__torch_dispatch__(func, types, args, kwargs)
        writes_first = func._schema.name in _WRITES_FIRST
        given = self._of_device((args[1:] if writes_first else args, kwargs))
        made = self._of_device(args[0] if writes_first else found)
        if (given or made) and not func._schema.name.startswith("prim::"):
            is_asynchronous = kwargs.get("non_blocking", len(args) > 2 and args[2])
            self._works.append(self._work(func, given, made, is_asynchronous=is_asynchronous))
        return found

    def pop(self) -> Work:
        """Return the work since the last call."""
        works, self._works = self._works, []
        return Work(*map(sum, zip(NOTHING, *works, strict=True)))

    def _of_device(self, value: Any) -> list[torch.Tensor]:
        tensors = (one for one in tree_leaves(value) if isinstance(one, torch.Tensor))
        return [tensor for tensor in tensors if tensor.device.type == self._device]

    def _work(self, func: Any, given: list[Any], made: list[Any], *, is_asynchronous: bool) -> Work:
        name = func._schema.name
        if not is_launch(func):
            return NOTHING._replace(operations=1)
        is_copy = self._device != "cpu" and (name in _COPIES or name == "aten::_to_copy")
        crosses = is_copy and not (given and made)  # its other side is on the host
        is_waited_for = name in READS or (crosses and not is_asynchronous)
        copies = len(given) if crosses else 0
        return Work(1, 1, sum(tensor.nbytes for tensor in given), copies, int(is_waited_for))


# What a guard adds to a step

WIDTH, DEPTH = 64, 2
"""A model of 14 tensors, all of whose state is summed in every step of `recover`."""

WARM, COUNTED = 15, 15
SETTINGS = {"live.telemetry_every": 5, "recover.snapshot_every": 5}


class StepKinds(NamedTuple):
    """What a guard adds to a usual step, and what some steps have on top of that."""

    usual: Work
    telemetry: Work
    snapshot: Work


def count_steps(device: torch.device, folder: Path, modes: Iterable[str]) -> dict[str, StepKinds]:
    """Train on a device without a guard and in each mode, and compare the steps."""
    (bare,) = set(_works(device, folder, None).values())
    return {mode: _kinds(bare, device, folder / mode, mode) for mode in modes}


def _kinds(bare: Work, device: torch.device, folder: Path, mode: str) -> StepKinds:
    works = _works(device, folder, mode)
    records = read_journal(RunDirectory(folder)).block.records()
    measured = {record.step for record in records if PARAM_NORM in record.signals}
    kinds: dict[str, list[Work]] = {"usual": [], "telemetry": [], "snapshot": []}
    for step, work in works.items():
        is_copied = work.copies_to_host > DEPTH
        kind = "telemetry" if step in measured else "snapshot" if is_copied else "usual"
        kinds[kind].append(work.above(bare))
    usual = statistics.mode(kinds.pop("usual"))
    # The least: such a step may also have what some usual steps have, as a gate that learns.
    rest = (min(some).above(usual) if some else NOTHING for some in kinds.values())
    return StepKinds(usual, *rest)


def _works(device: torch.device, folder: Path, mode: str | None) -> dict[int, Work]:
    """Return the work of each step, once state and buffers exist."""
    run = Training(device=device, width=WIDTH, depth=DEPTH)
    works = {}
    with nullcontext() if mode is None else run.watch(folder, mode, **SETTINGS) as guard:
        for step, batch in enumerate(batches(WARM + COUNTED, width=WIDTH)):
            counting = WorkCounting(device) if step >= WARM else nullcontext()
            with counting:
                run.step(batch, guard)
            if isinstance(counting, WorkCounting):
                works[step] = counting.pop()
    return works


# The page, and what is kept for the self-test

ROOT = Path(__file__).parents[2]
KEPT = Path(promises.__file__)
PAGE = ROOT / "docs" / "limits.md"
BEGIN, END = "<!-- scripts/bench device_work -->", "<!-- end of device_work -->"

LAUNCH_US, BANDWIDTH, GRAPH_US = 4.0, 3.3e12, 10.0
"""Assumed: microseconds of a small kernel with its launch, bytes a second of an H100, microseconds
to launch a CUDA graph."""


class Paper(NamedTuple):
    """What was counted."""

    kinds: dict[str, StepKinds]
    launches: dict[str, float]
    """Per step, as `trimtab selftest` counts them."""


def count(modes: Iterable[str] = MODES) -> Paper:
    with pretend_device() as device, tempfile.TemporaryDirectory() as folder:
        kinds = count_steps(device, Path(folder), modes)
        launches = {}
        for mode in modes:
            found = promises.count_above_bare(device, Path(folder) / f"{mode}-mean", mode)
            launches[mode] = round(found["launches"] / promises.COUNTED_STEPS, 1)
    return Paper(kinds, launches)


def table(found: Mapping[str, StepKinds]) -> str:
    """Return the table of the page."""
    weights = 4 * sum(p.numel() for p in SmallModel(WIDTH, DEPTH).parameters())
    lines = [
        "| mode | what | operations | launches | bytes read, of the weights' | "
        "copies to the host | waits | launches x 4 us | as one CUDA graph |",
        "|" + " --- |" * 9,
    ]
    for mode, kinds in found.items():
        for what, work in kinds._asdict().items():
            if work.operations:
                shown = what if what == "usual" else f"{what}, on top"
                lines.append("| " + " | ".join([mode, shown, *_cells(work, weights)]) + " |")
    return "\n".join(lines)


def _cells(work: Work, weights: int) -> list[str]:
    return [
        str(work.operations),
        str(work.launches),
        f"{work.bytes_read / weights:.1f}",
        str(work.copies_to_host),
        str(work.waits),
        f"{LAUNCH_US * work.launches:.0f} us",
        f"{GRAPH_US + 1e6 * work.bytes_read / BANDWIDTH:.0f} us",
    ]


def with_table(page: str, text: str) -> str:
    """Return the page with this table between its marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"


def write() -> None:
    """Count, and write the page and what the self-test compares with."""
    paper = count()
    shown = ", ".join(f'"{mode}": {mean}' for mode, mean in paper.launches.items())
    source = KEPT.read_text(encoding="utf-8")
    line = re.compile(r"(?m)^PAPER_LAUNCHES = .*$")
    KEPT.write_text(line.sub(f"PAPER_LAUNCHES = {{{shown}}}", source), encoding="utf-8")
    text = with_table(PAGE.read_text(encoding="utf-8"), table(paper.kinds))
    for mode, mean in paper.launches.items():
        line = re.compile(rf"(?m)^(pass  {mode} reads .* on paper )\S+( on a GPU)")
        text = line.sub(rf"\g<1>{mean}\g<2>", text)
    PAGE.write_text(text, encoding="utf-8")
