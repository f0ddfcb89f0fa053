import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest
from tests.kit.plugins import install_plugin
from tests.readers.shapes import Write, assert_reads

from trimtab.core.block import Block, Column
from trimtab.core.errors import ConfigError, NoUsableLoss, UnreadableLog
from trimtab.core.plugins import READERS
from trimtab.core.run import Reader, Run
from trimtab.readers import log_formats, read_log

ACME = """
import numpy as np
from trimtab.core.block import Block, Column
from trimtab.core.run import Run

class AcmeReader:
    name = "acme"
    description = "logs of the Acme trainer"

    def recognises(self, path, head):
        return b"loss" in head or path.suffix == ".acme"

    def read(self, path):
        if path.is_dir():
            path = path / "run.acme"
        losses = [float(line.split("=")[1]) for line in path.read_text().splitlines()]
        block = Block.from_columns(
            {"loss": Column.complete(np.array(losses))}, step=np.arange(len(losses))
        )
        return Run(block=block, notes=("Read by Acme.",), names={"loss": "L"})
"""
LOG = "L=3.0\nL=2.5\n"
CSV = "step,loss\n1,2\n"


@dataclass(frozen=True)
class Fixed:
    """A reader that recognises every log and reads the same block from it, or fails."""

    name: str = "fixed"
    description: str = "anything"
    signal: str = "loss"
    error: Exception | None = None
    only: str = ""

    def recognises(self, path: Path, head: bytes) -> bool:
        return self.only in path.name

    def read(self, path: Path) -> Run:
        if self.error:
            raise self.error
        column = Column.complete(np.array([7.0]))
        return Run(block=Block.from_columns({self.signal: column}, step=np.array([1])))


@pytest.fixture
def acme(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "site"
    folder.mkdir()
    install_plugin(folder, monkeypatch, READERS, "acme", ACME, "AcmeReader")


@pytest.mark.usefixtures("acme")
def test_an_installed_plugin_reads_what_trimtab_does_not_recognise(write: Write) -> None:
    reading = read_log(write(LOG, "run.acme"))
    assert reading.format == "acme"
    assert_reads(reading, "loss=3 2.5", "Read by Acme.")
    assert reading.names == {"loss": "L"}
    assert read_log(write(CSV, "run.acme")).format == "csv"
    # It comes before a format that is known by the suffix alone.
    assert read_log(write("loss=3.0\nloss=2.5\n", "run.csv")).format == "acme"
    assert read_log(write("step,loss=1\nloss=2\n"), format="acme").format == "acme"


@pytest.mark.usefixtures("acme")
def test_an_installed_plugin_may_read_a_folder(write: Write) -> None:
    folder = write(LOG, "run.acme").parent
    with pytest.raises(UnreadableLog, match="no line has a number with a name"):
        read_log(folder)
    assert read_log(folder, format="acme").format == "acme"


@pytest.mark.usefixtures("acme")
def test_messages_name_an_installed_plugin(write: Write) -> None:
    assert "acme" in log_formats()
    with pytest.raises(ConfigError, match="unknown log format 'x'; choose from acme, csv,"):
        read_log(write(CSV), format="x")
    with pytest.raises(UnreadableLog, match="formats for --format: acme, csv"):
        read_log(write("nothing here\n", "log.txt"))
    with pytest.raises(UnreadableLog, match="reads one run per file; leave out the run '2'"):
        read_log(f"{write(LOG, 'run.acme')}#2")


def test_the_example_of_the_docs_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "readers.md").read_text()
    (example,) = re.findall(r"```python\n(from pathlib.*?)```", page, flags=re.DOTALL)
    (tmp_path / "run.acme").write_text("ACME 1\n3.0\n2.5\n")
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    exec(example.replace("trimtab.read_log(", "reading = trimtab.read_log("), names)
    reading = names["reading"]
    assert isinstance(reading, Run)
    assert reading.format == "acme"
    assert_reads(reading, "loss=3 2.5")


@pytest.mark.parametrize(
    ("source", "reason"),
    [
        ("raise RuntimeError('no licence')", "RuntimeError: no licence"),
        ("class AcmeReader: pass", "it lacks name, description, recognises or read"),
        (ACME.replace('"acme"', '"csv"'), "there is a reader 'csv' already"),
        (ACME.replace("    name", "    def __init__(self, x): 0\n    name"), "TypeError: Acme"),
        (ACME.replace("return b", "return 1 / 0 or b"), "ZeroDivisionError: division by zero"),
        (ACME.replace("path.is_dir()", "1 / 0"), "ZeroDivisionError"),
        (ACME.replace("    if path", "    return 7\n        if path"), "TypeError: read returned"),
    ],
)
def test_a_broken_plugin_is_reported_and_left_out(
    tmp_path: Path, write: Write, monkeypatch: pytest.MonkeyPatch, source: str, reason: str
) -> None:
    install_plugin(tmp_path, monkeypatch, READERS, "acme", source, "AcmeReader")
    assert read_log(write(CSV)).notes == ()
    with pytest.raises(UnreadableLog, match=rf"'L=3.0'.*\n.*left out: {reason}"):
        read_log(write(LOG, "run.acme"))
    reading = read_log(write('up\n{"step": 1, "loss": 2}\n', "loss.jsonl"))
    assert (reading.format, len(reading.notes)) == ("jsonl", 2)
    assert reason in reading.notes[0]


def test_a_reader_that_is_passed_comes_first_unless_a_format_is_named(write: Write) -> None:
    reader = Fixed()
    assert isinstance(reader, Reader)
    assert read_log(write(CSV), readers=[reader]).format == "fixed"
    assert read_log(write(CSV), readers=[Fixed(only="x")]).format == "csv"
    assert read_log(write(CSV), readers=[reader], format="csv").format == "csv"
    mine = Fixed(name="csv", only="x")
    assert_reads(read_log(write(CSV), readers=[mine], format="csv"), "loss=7")


def test_a_passed_reader_that_fails_is_left_out_or_an_error_if_it_was_named(write: Write) -> None:
    reader = Fixed(error=ValueError("bad line 7"))
    reading = read_log(write(CSV), readers=[reader])
    assert reading.format == "csv"
    assert reading.notes == ("The reader 'fixed' failed and is left out: ValueError: bad line 7.",)
    for failing, error, message in (
        (reader, UnreadableLog, r"reader 'fixed' failed \(ValueError: bad line 7"),
        (Fixed(error=UnreadableLog("no rows here")), UnreadableLog, "no rows here"),
        (Fixed(signal="lr"), NoUsableLoss, r"no training loss \(signals: lr\)"),
    ):
        with pytest.raises(error, match=message):
            read_log(write(CSV), readers=[failing], format="fixed")
    with pytest.raises(ConfigError, match="'megatron' is not a log reader"):
        read_log(write(CSV), readers=["megatron"])  # type: ignore[list-item]
