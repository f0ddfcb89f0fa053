"""The public runs are fetched from their repositories: here from a server on this machine."""

import hashlib
import json
import urllib.parse
from pathlib import Path
from typing import Any

import pytest
from benchmarks.data.fetch import MANIFEST, Series, WrongFile, fetch, fetch_all, read_manifest
from tests.kit.public_runs import MISSING, RUNS, real_runs
from tests.kit.servers import Quiet, Server, serving

LOG = b"step,loss,grad_norm\n" + b"".join(b"%d,%.3f,1.5\n" % (at, 3 - at / 100) for at in range(99))


class Published(Server):
    """Answers like raw.githubusercontent.com, and like the listing of a folder by the API."""

    def __init__(self, folder: Path) -> None:
        super().__init__(_Handler)
        self.folder = folder
        self.asked: list[str] = []


class _Handler(Quiet):
    server: Published

    def do_GET(self) -> None:
        self.server.asked.append(self.path)
        path = urllib.parse.unquote(self.path.partition("?")[0])
        if path.startswith("/api/"):
            _, _, owner, name, _, *parts = path.split("/")
            folder = self.server.folder.joinpath("raw", owner, name, "c1", *parts)
            self.answer(200, [{"name": one.name} for one in folder.iterdir()])
            return
        file = self.server.folder / path.lstrip("/")
        data = file.read_bytes() if file.exists() else b""
        self.send_response(200 if file.exists() else 404)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)


def blob(data: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(data) + data, usedforsecurity=False).hexdigest()


def entry(name: str, path: str, **sums: Any) -> Series:
    labels = {"label": "healthy", "split": "tune", "tags": [], "events": []}
    values = {"name": name, "set": "runs", "repository": "a/b", "path": path, "commit": "c1"}
    return Series(name, {**values, "labels": labels, **sums})


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """A server's folder with what a repository has."""
    folder = tmp_path / "served" / "raw" / "a" / "b" / "c1" / "logs"
    folder.mkdir(parents=True)
    (folder / "log one.csv").write_bytes(LOG)
    (folder / "events.1").write_bytes(LOG)
    (folder / "events.other").write_bytes(b"other")
    return tmp_path / "served"


def test_a_series_is_fetched_once_and_written(tmp_path: Path, published: Path) -> None:
    series = entry("one", "logs/log one.csv", git_blobs=[blob(LOG)])
    by_pattern = entry("two", "logs/events.*", git_blobs=[blob(LOG)])
    by_sum = entry("three", "logs/log one.csv", sha256=hashlib.sha256(LOG).hexdigest())
    every = [series, by_pattern, by_sum]
    server = Published(published)
    raw, api = f"{server.url}/raw", f"{server.url}/api"
    with serving(server):
        done, failed = fetch_all(every, tmp_path / "data", raw, api)
        assert (len(done), failed) == (3, [])
        count = len(server.asked)
        fetch_all(every, tmp_path / "data", raw, api)
        assert len(server.asked) == count  # nothing was fetched again
    rows = (tmp_path / "data" / "runs" / "one.csv").read_text().splitlines()
    assert rows[:2] == ["step,loss,grad_norm", "0,3.0,1.5"]
    labels = json.loads((tmp_path / "data" / "runs" / "labels.json").read_text())
    assert set(labels["series"]) == {"one", "two", "three"}


def test_a_file_that_is_not_the_labelled_one_is_refused(tmp_path: Path, published: Path) -> None:
    server = Published(published)
    raw, api = f"{server.url}/raw", f"{server.url}/api"
    with serving(server):
        for series in (
            entry("one", "logs/log one.csv", git_blobs=[blob(b"different")]),
            entry("two", "logs/events.*", git_blobs=[blob(b"different")]),
        ):
            with pytest.raises(WrongFile):
                fetch(series, tmp_path / "data", raw, api)
        assert not list((tmp_path / "data").rglob("*.csv"))
        missing = entry("three", "logs/none.csv", git_blobs=[blob(LOG)])
        done, failed = fetch_all([missing], tmp_path / "data", raw, api)
        assert not done
        assert "404" in failed[0]
        # A file that somebody has changed since is not used either.
        good = entry("four", "logs/log one.csv", git_blobs=[blob(LOG)])
        (path,) = fetch(good, tmp_path / "data", raw, api)
        path.write_bytes(b"changed")
        with pytest.raises(WrongFile):
            fetch(good, tmp_path / "data", raw, api)


def test_the_manifest_says_where_everything_is() -> None:
    series = read_manifest()
    assert len({(one.folder, one.name) for one in series}) == len(series)
    for one in series:
        values = one.values
        assert len(values["commit"]) == 40, one.name
        assert "/" in values["repository"]
        assert not values["path"].startswith("/")
        assert ".." not in Path(values["path"]).parts
        sums = values.get("git_blobs") or [values["sha256"]]
        assert all(
            len(found) in (40, 64) and set(found) <= set("0123456789abcdef") for found in sums
        )
        assert values["labels"]["label"]
    assert MANIFEST.stat().st_size < 200_000


@pytest.mark.skipif(not RUNS.exists(), reason=MISSING)
def test_the_labels_of_the_manifest_are_those_that_figures_were_measured_with() -> None:
    labels = {one.name: one.values["labels"] for one in read_manifest() if one.folder == "runs"}
    for run in real_runs():
        mine = labels[run.name]
        assert (mine["label"], mine["split"]) == (run.label, run.split)
        assert [event["start_step"] for event in mine["events"]] == [
            one.start for one in run.labels
        ]
