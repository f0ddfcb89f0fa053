"""Run: a training run as it was read. Reader: reads one log format; an extension point.

Readers and the journal return a run; judging, comparing and reporting start from it. Trimtab's own
formats (`trimtab.readers`) and those of other packages follow the same protocol. A reader is passed
to `read_log(..., readers=[...])` or `diagnose(..., readers=[...])`, or offered by an installed
package as an entry point of the group `trimtab.readers`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from trimtab.core.block import Block
from trimtab.core.card import card, fitting, fold, row
from trimtab.core.text import counted, listed, printable

SETTINGS = ("beta2", "epsilon", "clip", "warmup", "batch")
"""Numbers that a log or a manifest may state, and that make some causes more likely: beta2 and
epsilon of Adam, the norm that gradients are clipped at (0: they are not), steps of the warm-up or
its share of the run, samples in a step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """What is known about a run besides its records; None is "not recorded"."""

    dtype: str | None = None
    """Precision regime: fp32, bf16, fp16 or fp8."""
    seed: int | None = None
    ranks: int | None = None
    """How many processes train together."""
    link: str | None = None
    """Address of the run's page in a tracker."""
    trainer: str | None = None
    """The framework that trains, such as "Megatron-LM" or "TRL"."""
    optimizer: str | None = None
    """The class of the optimizer, such as "AdamW"; of several, all names with spaces between."""
    settings: Mapping[str, float] = field(default_factory=dict)
    """Those of `SETTINGS` that are known, by name."""

    checkpoints: Mapping[int, str] = field(default_factory=dict)
    """The checkpoints that are known, by the step that comes next from each: their names."""

    @classmethod
    def from_manifest(cls, manifest: Mapping[str, Any]) -> "RunFacts":
        """Return the facts in a run's manifest; a field of the wrong type is left out."""
        # A manifest is a file that anyone may have edited.
        names = ("dtype", "seed", "world", "link", "optimizers")
        dtype, seed, ranks, link, optimizers = (manifest.get(name) for name in names)
        numbers = {name: manifest.get(name) for name in SETTINGS}
        return cls(
            settings={name: float(n) for name, n in numbers.items() if isinstance(n, int | float)},
            dtype=dtype if isinstance(dtype, str) else None,
            seed=seed if isinstance(seed, int) else None,
            ranks=ranks if isinstance(ranks, int) else None,
            link=link if isinstance(link, str) else None,
            optimizer=" ".join(map(str, optimizers)) if isinstance(optimizers, list) else None,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The records of a run, and what is known about them.

    A reader has to give only the block.
    """

    block: Block
    """The records, under trimtab's signal names (`core/signals.py`)."""
    format: str = ""
    """The name of the format, such as "text" or "journal"; of a reader's run, the reader's
    name."""
    path: Path | None = None
    """The file or folder that was read: of a folder of logs, the log that was chosen."""
    facts: RunFacts = field(default_factory=RunFacts)
    names: Mapping[str, str] = field(default_factory=dict)
    """Signal or axis to its name in the log, such as `{"loss": "lm loss"}`."""
    notes: tuple[str, ...] = ()
    """Everything that was left out, repaired, chosen or guessed, in plain sentences."""
    failures: tuple[str, ...] = ()
    """One sentence for each reader of a user that failed and was left out; also in `notes`."""

    def __repr__(self) -> str:
        return printable(f"<Run {self.path or ''} ({self.format}): {self.block.extent}>")

    def _repr_html_(self) -> str:
        notes = fitting(row("", note) for note in self.notes)
        return card(
            "",
            str(self.path or self.format),
            row("format", self.format),
            row("records", self.block.extent),
            row("signals", listed(self.block.columns, 40)),
            fold(counted(len(self.notes), "note"), notes),
        )


@runtime_checkable
class Reader(Protocol):
    """Reads one log format."""

    @property
    def name(self) -> str:
        """The name of the format, as given to `--format`."""
        ...

    @property
    def description(self) -> str:
        """What a log of this format is, in a few words; error messages list it."""
        ...

    def recognises(self, path: Path, head: bytes) -> bool:
        """Return whether the log has this format.

        `head` is the first MiB of the file (of its content, if it is gzip), and empty if `path`
        is a folder.
        """
        ...

    def read(self, path: Path) -> Run:
        """Read the log; raise `UnreadableLog` if it has no records."""
        ...
