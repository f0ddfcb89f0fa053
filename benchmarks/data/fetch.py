"""Public runs, fetched from their repositories: every file is that of its commit, or it is refused.

    <folder>/originals/<set>/<name>/...   the files as they were published
    <folder>/runs/<name>.csv              step, loss, and what else was logged, read by trimtab
    <folder>/runs/labels.json             our labels; strangers/ has the same, in raw/ and csv/

A file that is there already and has its checksum is not fetched again. What is fetched keeps its
licence; the manifest names it, and the repository has the last word.
"""

import csv
import fnmatch
import hashlib
import io
import json
import shutil
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trimtab.core.errors import TrimtabError
from trimtab.core.jsonable import to_jsonable
from trimtab.readers import read_log

MANIFEST = Path(__file__).with_name("manifest.json")
RAW, API = "https://raw.githubusercontent.com", "https://api.github.com/repos"
SECONDS = 60
MAX_BYTES = 2**28

_COLUMNS = {
    "loss": "loss",
    "grad_norm": "grad_norm",
    "lr": "lr",
    "loss_scale": "loss_scale",
    "tokens_per_second": "tokens_per_s",
    "step_seconds": "step_time_s",
    "n_overflow": "n_overflow",
    "reward": "reward",
    "kl": "kl",
    "entropy": "entropy",
}
"""What trimtab calls a column, and what the files of the collection call it."""


class WrongFile(Exception):
    """A file is not the one that was labelled."""


@dataclass(frozen=True, slots=True)
class Series:
    """One entry of the manifest."""

    name: str
    values: dict[str, Any]

    @property
    def folder(self) -> str:
        """The set that it belongs to: runs or strangers."""
        return str(self.values["set"])

    @property
    def run(self) -> str | None:
        """The run in a file that holds several."""
        return self.name.partition("__")[2] or None

    def check(self, data: bytes) -> str:
        """Return the checksum of a file of this series; raises WrongFile if it has a different one.

        A blob of git is checked by the name that git has for it.
        """
        if blobs := self.values.get("git_blobs"):
            # git names a blob by SHA-1; nothing here relies on that being hard to forge
            header = f"blob {len(data)}\0".encode()
            found = hashlib.sha1(header + data, usedforsecurity=False).hexdigest()
            wanted = blobs
        else:
            found, wanted = hashlib.sha256(data).hexdigest(), [self.values["sha256"]]
        if found not in wanted:
            raise WrongFile(f"{self.name}: its checksum is {found}, not {' or '.join(wanted)}")
        return found


def read_manifest(path: Path = MANIFEST) -> list[Series]:
    entries = json.loads(path.read_text(encoding="utf-8"))
    return [Series(entry["name"], entry) for entry in entries]


def fetch(series: Series, folder: Path, raw: str = RAW, api: str = API) -> list[Path]:
    """Fetch the files of a series that are not there; return them all.

    Raises WrongFile if one is not the labelled one, OSError if one cannot be fetched.
    """
    place = folder / "originals" / series.folder / series.name
    wanted = len(series.values.get("git_blobs", [""]))
    there = sorted(path for path in place.glob("*") if not path.name.endswith(".part"))
    if len(there) == wanted:
        for path in there:
            series.check(path.read_bytes())
        return there
    place.mkdir(parents=True, exist_ok=True)
    found: dict[str, Path] = {}
    for name in _paths(series, api):
        data = _get(_address(raw, series, name))
        try:
            checksum = series.check(data)
        except WrongFile:
            if "*" in series.values["path"]:
                continue  # another file of the same name pattern
            raise
        draft = place / f"{Path(name).name}.part"
        draft.write_bytes(data)
        found[checksum] = draft.rename(place / Path(name).name)
    if len(found) != wanted:
        raise WrongFile(f"{series.name}: {len(found)} of {wanted} files are in the repository")
    return sorted(found.values())


def _paths(series: Series, api: str) -> Iterator[str]:
    """Yield the paths in the repository; a pattern in the name is looked up by the API."""
    path, commit = series.values["path"], series.values["commit"]
    if "*" not in path:
        yield path
        return
    parent, _, pattern = path.rpartition("/")
    address = f"{api}/{series.values['repository']}/contents/{urllib.parse.quote(parent)}"
    for entry in json.loads(_get(f"{address}?ref={commit}")):
        name = str(entry["name"])
        if fnmatch.fnmatch(name, pattern) and "/" not in name:
            yield f"{parent}/{name}"


def _address(raw: str, series: Series, path: str) -> str:
    values = series.values
    return f"{raw}/{values['repository']}/{values['commit']}/{urllib.parse.quote(path)}"


def _get(address: str) -> bytes:
    request = urllib.request.Request(address, headers={"User-Agent": "trimtab scripts/data"})
    with urllib.request.urlopen(request, timeout=SECONDS) as answer:
        data: bytes = answer.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise WrongFile(f"{address} has over {MAX_BYTES:,} bytes")
    return data


def write_series(series: Series, files: Sequence[Path], folder: Path) -> Path:
    """Write the CSV file of a series; raises TrimtabError if it cannot be read."""
    home = folder / series.folder
    several = len(files) > 1
    block = read_log(files[0].parent if several else files[0], run=series.run).block
    names = {ours: theirs for ours, theirs in _COLUMNS.items() if block.column(ours).recorded}
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["step", *names.values()])
    columns = [block.column(name) for name in names]
    for row, step in enumerate(block.step.tolist()):
        cells = [repr(float(one.values[row])) if one.present[row] else "" for one in columns]
        writer.writerow([step, *cells])
    if series.folder == "strangers":
        raw = home / "raw" / series.values["file"]
        raw.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(files[0], raw)
    path = home / ("csv" if series.folder == "strangers" else "") / f"{series.name}.csv"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text.getvalue(), encoding="utf-8")
    return path


def write_labels(series: Sequence[Series], folder: Path) -> None:
    """Write the labels of what is there, as tests and benchmarks read them."""
    for part in ("runs", "strangers"):
        chosen = {one.name: one.values["labels"] for one in series if one.folder == part}
        if chosen:
            (folder / part).mkdir(parents=True, exist_ok=True)
            text = json.dumps({"series": to_jsonable(chosen)}, indent=1)
            (folder / part / "labels.json").write_text(text + "\n", encoding="utf-8")


def fetch_all(
    series: Sequence[Series], folder: Path, raw: str = RAW, api: str = API
) -> tuple[list[Series], list[str]]:
    """Fetch and write every series; return those that are there, and why others are not."""
    done, failed = [], []
    for one in series:
        try:
            files = fetch(one, folder, raw, api)
            write_series(one, files, folder)
        except (OSError, ValueError, WrongFile, TrimtabError) as error:
            failed.append(f"{one.name}: {error}")
            if one.values["labels"]["label"] == "read_test_only" and isinstance(
                error, TrimtabError
            ):
                failed.pop()  # a log that is to be refused
        else:
            done.append(one)
    write_labels(done, folder)
    return done, failed
