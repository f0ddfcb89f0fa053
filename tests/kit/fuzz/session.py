"""A session: one damaged input after another, and what came out of each target."""

import base64
import math
import random
import re
import signal
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

from tests.kit.fuzz.damage import damage
from tests.kit.fuzz.targets import Target
from trimtab.core.errors import TrimtabError

LONGEST = 10.0
"""Seconds of CPU time after which an input counts as a hang; the usual one takes milliseconds."""
LARGEST_KEPT = 1024
"""Bytes of an input that is kept as interesting."""


INPUTS = Path(__file__).parents[2] / "fuzz" / "inputs"
"""The inputs that are kept."""


class Hang(BaseException):
    """An input took too long; not an Exception, so that no reader can swallow it."""


@dataclass(slots=True)
class Tally:
    """What came out of one target."""

    read: int = 0
    refused: Counter[str] = field(default_factory=Counter)
    slowest: float = 0.0
    failures: list[str] = field(default_factory=list)
    interesting: dict[str, bytes] = field(default_factory=dict)
    """The smallest input with each outcome, by what was said about it."""

    @property
    def inputs(self) -> int:
        """All inputs so far."""
        return self.read + self.refused.total() + len(self.failures)


def try_one(target: Target, data: bytes, folder: Path, tally: Tally) -> None:
    """Read one input; keeps it if nothing like its outcome was seen before."""
    path = folder / target.file
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    begin = time.process_time()
    signal.setitimer(signal.ITIMER_PROF, LONGEST)
    try:
        said = "\n".join(target.read(path))
    except TrimtabError as error:
        said = f"{type(error).__name__}: {error}"
        tally.refused[type(error).__name__] += 1
    except (Exception, Hang) as error:
        said = f"{type(error).__name__}: {error}"
        tally.failures.append(f"{target.name}: {said}: {data[:200]!r}")
    else:
        tally.read += 1
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
    tally.slowest = max(tally.slowest, time.process_time() - begin)
    outcome = kind_of(said)
    known = tally.interesting.get(outcome)
    if known is None or len(data) < len(known):
        tally.interesting[outcome] = data


def kind_of(said: str) -> str:
    """What was said, without numbers, names and quotations: the kind of outcome."""
    plain = re.sub(r"'[^']*'|\"[^\"]*\"|b'.*|/\S+", "_", said)
    return re.sub(r"[\d.,]+", "0", plain)[:200]


def mutate(
    targets: Sequence[Target], number: int, folder: Path, seed: int, *, seconds: float = math.inf
) -> dict[str, Tally]:
    """Read this many inputs by a seeded generator; what is interesting is damaged further.

    After so many seconds of processor time, or an interrupt, there are fewer.
    """
    signal.signal(signal.SIGPROF, _raise_hang)
    rng = random.Random(seed)
    tallies = {target.name: Tally() for target in targets}
    weights = [target.weight for target in targets]
    for target in targets:
        for whole in (*target.seeds, *kept(INPUTS, target.name)):
            try_one(target, whole, _folder(folder, target), tallies[target.name])
    until = time.process_time() + seconds
    done = sum(tally.inputs for tally in tallies.values())
    with suppress(KeyboardInterrupt):
        while done < number and time.process_time() < until:
            target = rng.choices(targets, weights)[0]
            tally = tallies[target.name]
            found = list(tally.interesting.values())
            whole = rng.choice(found if found and rng.random() < 0.3 else target.seeds)
            data = damage(whole, target.seeds, rng)
            try_one(target, data, _folder(folder, target), tally)
            done += 1
    return tallies


def keep(tallies: dict[str, Tally], folder: Path) -> int:
    """Write the interesting inputs that are small, for the tests: a file for each target, in it a
    line for each input, in base64. Returns their number."""
    folder.mkdir(parents=True, exist_ok=True)
    seen: set[str] = set()
    for name, tally in tallies.items():
        new = {kind: data for kind, data in tally.interesting.items() if kind not in seen}
        seen |= new.keys()  # what is said of a wrong format, every log reader says
        small = [data for _, data in sorted(new.items()) if 0 < len(data) <= LARGEST_KEPT]
        if small:
            lines = [base64.b64encode(data).decode() + "\n" for data in small]
            (folder / file_name(name)).write_text("".join(lines), encoding="ascii")
    return sum(len(kept(folder, name)) for name in tallies)


def kept(folder: Path, name: str) -> tuple[bytes, ...]:
    """The inputs of a target that were kept."""
    file = folder / file_name(name)
    lines = file.read_text(encoding="ascii").splitlines() if file.exists() else []
    return tuple(base64.b64decode(line) for line in lines)


def file_name(name: str) -> str:
    """The file of a target."""
    return re.sub(r"\W+", "-", name) + ".txt"


def _folder(folder: Path, target: Target) -> Path:
    return folder / file_name(target.name)


def _raise_hang(number: int, frame: FrameType | None) -> None:
    raise Hang(f"over {LONGEST:.0f} s of CPU time")
