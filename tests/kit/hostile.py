"""Run directories that a stranger has prepared, and the doors of trimtab that they are tried on.

Outside of the run lies what must stay as it is: a file with a secret, a folder that looks like a
checkpoint, another run. A case changes a healthy run directory so that a careless reader or writer
would leave it.
"""

import contextlib
import io
import json
import logging
import os
import shutil
import threading
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from typer.testing import CliRunner

import trimtab
from tests.kit.observing import run_shipper
from tests.kit.watched_run import Hang, time_limit
from trimtab.cli.main import app
from trimtab.core.config import ShipConfig
from trimtab.core.errors import TrimtabError
from trimtab.journal import Follower, JournalWriter, RunDirectory
from trimtab.journal.checkpoints.manifest import MANIFEST, to_checked_json
from trimtab.journal.exit_request import ExitRequest
from trimtab.journal.news import read_news
from trimtab.journal.writer import JournalLimits
from trimtab.observe.server.hub import Hub
from trimtab.observe.shipping.log import ShipLog
from trimtab.observe.shipping.shipper import Shipper, find_sink

SECRET = b"CANARY-7f3a91"
NEWEST = "trimtab/checkpoints/step-00000080"


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """A run directory, and what lies outside of it."""

    run: Path
    outside: Path

    @property
    def home(self) -> Path:
        return self.run / "trimtab"

    @property
    def secret(self) -> Path:
        """A file that nobody may read, write or delete."""
        return self.outside / "secret.txt"

    @property
    def folder(self) -> Path:
        """A folder that looks like one of a checkpoint or of an incident."""
        return self.outside / "folder"


def make_place(folder: Path) -> Place:
    """A healthy run with two checkpoints, a position of a sink and an incident."""
    place = Place(run=folder / "runs" / "run", outside=folder / "outside")
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    checkpoints = trimtab.Checkpoints(model, optimizer, run_dir=place.run)
    for step in (40, 80):
        checkpoints.save(step)
    run = RunDirectory(place.run)
    journal = JournalWriter(run, JournalLimits(segment_records=50))
    for step in range(120):
        journal.append(step, {"loss": 9.0 if step == 100 else 2.0 - step / 200, "grad_norm": 1.0})
    journal.close()
    run.write_manifest({"schema": 1, "dtype": "bf16"})
    incident = place.home / "incidents" / "0001-step-000100"
    incident.mkdir(parents=True)
    (incident / "postmortem.md").write_text("# healthy\n")
    (place.home / "ship").mkdir()
    place.folder.mkdir(parents=True)
    place.secret.write_bytes(SECRET + b"\n")
    (place.folder / MANIFEST).write_bytes(SECRET)
    (place.folder / "postmortem.md").write_bytes(SECRET)
    (place.folder / "step-00000004").mkdir()
    (place.folder / "step-00000004" / "weights.pt").write_bytes(SECRET)
    (place.folder / "00000000.log").write_bytes(SECRET)
    return place


Change = Callable[[Place], None]
CASES: dict[str, Change] = {}
"""What a stranger does to the run directory, by its name."""


def case(change: Change) -> Change:
    CASES[change.__name__] = change
    return change


def link(name: str, to: str) -> None:
    """Add a case: a symbolic link in the run directory, to the secret or to the folder."""

    def change(place: Place) -> None:
        path = place.run / name.replace("PID", str(os.getpid()))
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(place.secret if to == "file" else place.folder)

    CASES[f"link {name} to a {to}"] = change


for folder_name in (
    "trimtab",
    "trimtab/journal",
    "trimtab/checkpoints",
    NEWEST,
    "trimtab/checkpoints/step-00000122.partial",
    "trimtab/incidents",
    "trimtab/incidents/0001-step-000100",
    "trimtab/ship",
    "trimtab/tensorboard",
    "trimtab/tensorboard/trimtab",
    "trimtab/hang",
):
    link(folder_name, "folder")
for file_name in (
    "trimtab/manifest.json",
    "trimtab/.manifest.json.PID.tmp",
    "trimtab/journal.lock",
    "trimtab/journal/00000000.seg",
    "trimtab/journal/00000003.log",
    "trimtab/journal/.00000003.seg.tmp",
    "trimtab/judge.json",
    "trimtab/notes.log",
    "trimtab/checkpoints.json",
    f"{NEWEST}/{MANIFEST}",
    f"{NEWEST}/trimtab-rank-00000.pt",
    "trimtab/incidents/0001-step-000100/postmortem.md",
    "trimtab/incidents/0001-step-000100/postmortem.html",
    "trimtab/incidents/0001-step-000100/batch.json",
    "trimtab/dashboard.html",
    "trimtab/ship/ship.log",
    "trimtab/ship/tensorboard.lock",
    "trimtab/ship/tensorboard.json",
    "trimtab/tensorboard/trimtab/attempt-0/events.out.tfevents.trimtab",
    "trimtab/exit.json",
    "trimtab/observer.jsonl",
    "trimtab/verdicts.json",
    "../LESSONS.md",
):
    link(file_name, "file")


def entry(folder: str = "step-00000004", **facts: Any) -> dict[str, Any]:
    """An entry of checkpoints.json, already bad, so that retention deletes it."""
    known = {
        **dict.fromkeys(("step", "data_position", "attempt", "num_bytes", "serial"), 0),
        "world": 1,
        "fault": "x",
        "source": "",
    }
    return {
        "folder": folder,
        "facts": known | facts,
        "verdict": "bad",
        "reason": "\x1b[31mx\n",
        "in_doubt": False,
        "given_up_for": None,
        "damage": "x",
    }


def listed(name: str, make: Callable[[Place], dict[str, Any]]) -> None:
    """Add a case: an entry of checkpoints.json."""

    def change(place: Place) -> None:
        content = {"version": 1, "checkpoints": [make(place)]}
        (place.home / "checkpoints.json").write_text(to_checked_json(content))

    CASES[f"checkpoints.json: {name}"] = change


listed("an absolute folder", lambda place: entry(str(place.folder)))
listed("a folder above", lambda place: entry("../../../../outside/folder"))
listed("a folder through a step", lambda place: entry("step-1/../../../../../outside/folder"))
listed("a folder with NUL", lambda place: entry("step-1\0"))
listed("a folder with an escape sequence", lambda place: entry("step-1\x1b]0;x\x07\n"))
listed("a folder of Windows", lambda place: entry("..\\..\\..\\outside\\folder"))
listed("digits of another script", lambda place: entry("step-\u0661\u0662"))
listed("an absolute source", lambda place: entry(source=str(place.folder)) | {"verdict": "proven"})
listed("a source above", lambda place: entry(source="../../outside/folder"))
listed("numbers that are none", lambda place: entry(step="0", serial=None))
listed("infinite numbers", lambda place: entry(step=float("inf"), serial=float("nan")))
listed("huge numbers", lambda place: entry(step=10**40, serial=-(10**40)))
listed("an entry that is no table", lambda place: [0])  # type: ignore[arg-type,return-value]


def written(name: str, file: str, make: Callable[[Place], str | bytes]) -> None:
    """Add a case: a file with this content."""

    def change(place: Place) -> None:
        content, path = make(place), place.run / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)

    CASES[f"{file}: {name}"] = change


INFINITE = json.dumps(
    dict.fromkeys(("number", "step", "code", "expires", "version", "judge"), float("inf"))
    | {"action": "\x1b[2J", "reason": "\x1b[2J", "default": "x"}
)
JSON_FILES = ("manifest.json", "checkpoints.json", "judge.json", "verdicts.json", "exit.json")
for json_name in JSON_FILES:
    written("nested deeply", f"trimtab/{json_name}", lambda place: '{"a":' + "[" * 100_000)
    written("infinite", f"trimtab/{json_name}", lambda place: INFINITE)
MANY_KEYS = "{" + ",".join(f'"{number}":1' for number in range(1_000_000)) + "}"
written("a million keys", "trimtab/manifest.json", lambda place: MANY_KEYS)
written("a million keys", "trimtab/ship/tensorboard.json", lambda place: MANY_KEYS)
written(
    "names of other files",
    "trimtab/ship/tensorboard.json",
    lambda place: json.dumps(
        {
            "schema": 1,
            "next_tick": 10**30,
            "memory": {"sizes": {str(place.secret): 0, "../../../outside/secret.txt": 0, "a": "b"}},
        }
    ),
)


@case
def names_in_the_manifest_of_a_checkpoint(place: Place) -> None:
    path = place.run / NEWEST / MANIFEST
    content = json.loads(path.read_text())
    content.pop("checksum")
    one = next(iter(content["files"].values()))
    for name in (str(place.secret), "../../../../../outside/secret.txt", "a\0b", "..", ""):
        content["files"][name] = one
    path.write_text(to_checked_json(content))


def journal_line(values: Mapping[str, Any]) -> bytes:
    body = json.dumps(values).encode()
    return b"%08x %s\n" % (zlib.crc32(body), body)


RECORD = {"kind": "record", "attempt": 0, "position": 0, "signals": {"loss": 1.0}}
EVENT = {"kind": "event", "event": "incident", "step": 1, "tick": 130}
LINES: dict[str, list[dict[str, Any]]] = {
    "the last ticks": [{**RECORD, "step": 1, "tick": 2**63 - 1}],
    "ticks too large": [{**RECORD, "step": 1, "tick": 2**64}],
    "negative numbers": [{**RECORD, "step": -(2**63), "tick": -5, "attempt": -1}],
    "a huge drop": [{"kind": "dropped", "first_tick": 2**62, "count": 2**62, "notes": 0}],
    "an incident with names": [
        {**EVENT, "facts": {"number": 10**25, "folder": "../../../outside", "link": "\x1b[2J"}}
    ],
    "an undo of everything": [
        {**EVENT, "event": "undo", "facts": {"updates_lost": -(10**18), "tensor": "\0"}}
    ],
    "a relaunch with wrong data": [
        {**EVENT, "event": "relaunch", "facts": {"bad_data": [[1e999, 0], [[], {}], [True, "x"]]}}
    ],
}
for line_name, lines in LINES.items():
    written(
        line_name,
        "trimtab/journal/00000003.log",
        lambda place, lines=lines: b"".join(map(journal_line, lines)),  # type: ignore[misc]
    )


def special(name: str, make: Callable[[Path], None], *files: str) -> None:
    """Add cases: something that is not a regular file of an ordinary size."""

    def change_of(file: str) -> Change:
        def change(place: Place) -> None:
            path = place.run / file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.unlink(missing_ok=True)
            make(path)

        return change

    CASES.update({f"{file}: {name}": change_of(file) for file in files})


def make_sparse(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(2**40)


READ_BY_ALL = (
    *("trimtab/manifest.json", "trimtab/journal/00000000.seg", "trimtab/journal/00000003.log"),
    *("trimtab/checkpoints.json", "trimtab/judge.json", "trimtab/notes.log"),
)
special("a pipe", os.mkfifo, *READ_BY_ALL, "trimtab/journal.lock", f"{NEWEST}/.metadata")
special("a pipe", os.mkfifo, "../LESSONS.md", "trimtab/ship/ship.log")
special("a folder", Path.mkdir, *READ_BY_ALL, "trimtab/journal.lock", "trimtab/dashboard.html")
special("a terabyte", make_sparse, *READ_BY_ALL, f"{NEWEST}/{MANIFEST}")
for long_name in ("999999999999.log", "9" * 200 + ".log", "٠٠٠٠٠٠٠٩.log", "00000009.log\n"):
    special("a number", Path.touch, f"trimtab/journal/{long_name}")


@case
def a_lock_with_a_second_name(place: Place) -> None:
    (place.home / "journal.lock").unlink()
    os.link(place.secret, place.home / "journal.lock")


def snapshot(folder: Path) -> dict[str, tuple[object, ...]]:
    """Everything about the files of a folder that somebody could have changed."""
    found: dict[str, tuple[object, ...]] = {}
    for path in [folder, *sorted(folder.rglob("*"))]:
        known = path.lstat()
        content = path.read_bytes() if path.is_file() else b""
        times = (known.st_mtime_ns, known.st_ctime_ns)
        found[str(path)] = (known.st_mode, known.st_size, known.st_nlink, times, content)
    return found


def holders(place: Place) -> list[str]:
    """The files of the run directory that now hold the secret."""
    own = {path.stat().st_ino for path in place.outside.rglob("*")}
    found = []
    for path in place.run.parent.rglob("*"):
        known = path.lstat()
        is_small = path.is_file() and not path.is_symlink() and known.st_size < 2**24
        if is_small and known.st_ino not in own and SECRET in path.read_bytes():
            found.append(str(path))
    return found


def command(*arguments: object) -> str:
    """What a command prints; raises what is a bug of it."""
    done = CliRunner().invoke(app, [str(argument) for argument in arguments])
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        raise done.exception
    return done.output


def read_with_commands(place: Place) -> str:
    """Read it: `diagnose`, `checkpoints`, `compare`, and what `follow` and its pages poll."""
    printed = command("diagnose", place.run)
    printed += command("checkpoints", place.run, "--json")
    printed += command("compare", place.run, place.run)
    run = RunDirectory(place.run)
    hub = Hub([place.run.parent])
    hub.poll()
    printed += str(hub.fleet_since(-1))
    hub.close()
    with contextlib.suppress(OSError), Follower(run) as follower:
        follower.poll()
        printed += f"{read_news(run)} {ExitRequest.read(run.home)}"
    return printed


def write_with_commands(place: Place) -> str:
    return command("diagnose", place.run, "--write") + command("note", place.run, "x")


def ship(place: Place) -> str:
    """Send it to TensorBoard, whose files are in the run directory."""
    if RunDirectory.find(place.run) is None:
        return ""
    run = RunDirectory(place.run)
    with contextlib.suppress(TrimtabError):
        shipper = Shipper(run, [find_sink("tensorboard")], ShipConfig(), ShipLog(run, None))
        timer = threading.Timer(2.0, shipper.stop)  # a run that never ends is followed for ever
        timer.start()
        run_shipper(shipper, run)
        timer.cancel()
    return ""


def train(place: Place) -> str:
    """Resume it and train on, with checkpoints and retention; adopt a folder of the loop."""
    torch.manual_seed(0)
    model = torch.nn.Linear(4, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    with contextlib.suppress(TrimtabError):
        checkpoints = trimtab.Checkpoints(
            model, optimizer, run_dir=place.run, every_steps=2, keep=1, background=False
        )
        with contextlib.suppress(TrimtabError):
            checkpoints.resume()
        with trimtab.watch(
            model, optimizer, run_dir=place.run, checkpoints=checkpoints, facts={"step": 120}
        ) as guard:
            for step in guard.steps([torch.ones(2, 4)] * 6):
                for batch in step:
                    loss = model(batch).square().mean()
                    guard.record(loss=loss)
                    loss.backward()
                optimizer.step()
                optimizer.zero_grad()
    return ""


DOORS: dict[str, Callable[[Place], str]] = {
    "read": read_with_commands,
    "ship": ship,
    "train": train,
    "write": write_with_commands,
}


def attack(
    name: str,
    place: Place,
    doors: Mapping[str, Callable[[Place], str]] = DOORS,
    seconds: float = 60.0,
) -> list[str]:
    """Apply a case to a place and try the doors; return what went wrong, one sentence each."""
    CASES[name](place)
    before = snapshot(place.outside)
    problems = []
    for door, enter in doors.items():
        said = io.StringIO()
        handler, log = logging.StreamHandler(said), logging.getLogger("trimtab")
        log.addHandler(handler)
        try:
            with time_limit(seconds):
                printed = enter(place)
        except (Exception, Hang) as error:
            problems.append(f"{door}: raised {type(error).__name__}: {error}")
            printed = ""
        finally:
            log.removeHandler(handler)
        if SECRET.decode() in printed + said.getvalue():
            problems.append(f"{door}: shows what is outside")
        if "\x1b" in printed + said.getvalue():
            problems.append(f"{door}: passes an escape sequence on")
        after = snapshot(place.outside)
        if after != before:
            changed = [path for path in before if after.get(path) != before[path]]
            problems.append(f"{door}: changed outside: {changed or sorted(after.keys() - before)}")
            before = after
    problems += [f"holds what is outside: {path}" for path in holders(place)]
    return problems
