"""Lines of a guard in a script without logging of its own, above whatever bar is drawn."""

import io
import logging
import sys
from collections.abc import Callable
from typing import Any

import pytest
from rich.console import Console
from rich.live import Live

from trimtab.core.log import log, log_to_stderr_by_default

LINE = "trimtab: step 121 discarded"


@pytest.fixture
def say(monkeypatch: pytest.MonkeyPatch) -> Callable[[], None]:
    """Return what logs the line in a script that has configured no logging."""

    def log_line() -> None:
        with monkeypatch.context() as patch:
            patch.setattr(logging.root, "handlers", [])  # pytest adds its own to each test
            patch.setattr(log, "handlers", [])
            patch.setattr(log, "level", logging.NOTSET)
            log_to_stderr_by_default()
            log.info(LINE)

    return log_line


@pytest.fixture
def tqdm() -> Any:
    return pytest.importorskip("tqdm.std").tqdm


def screen(text: str) -> list[str]:
    """Return the lines of a terminal after a text with carriage returns."""
    lines = []
    for line in text.split("\n"):
        cells = ""
        for part in line.split("\r"):
            cells = part + cells[len(part) :]
        lines.append(cells.rstrip())
    return lines


@pytest.mark.parametrize("module", ["tqdm.std", "tqdm.auto", "tqdm.asyncio"])
def test_a_line_stands_above_the_bar_of_tqdm(
    say: Callable[[], None], capsys: pytest.CaptureFixture[str], module: str
) -> None:
    kind = pytest.importorskip(module).tqdm
    with kind(total=260, mininterval=0) as bar:
        bar.update(120)
        say()
        first, second = screen(capsys.readouterr().err)
    assert first == LINE
    assert "120/260" in second


def test_a_line_stands_above_what_rich_draws(
    say: Callable[[], None], capsys: pytest.CaptureFixture[str]
) -> None:
    console = Console(stderr=True, force_terminal=True, width=40)
    with Live("a bar", console=console, auto_refresh=False) as live:
        live.refresh()
        say()
        before, after = capsys.readouterr().err.split(LINE)
    assert before.endswith("a bar\r\x1b[2K")  # drawn, then cleared
    assert after == "\na bar"


@pytest.mark.parametrize("broken", ["clear", "refresh"])
def test_an_error_of_tqdm_costs_no_line(
    say: Callable[[], None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tqdm: Any,
    broken: str,
) -> None:
    def fail(*_: object, **__: object) -> None:
        raise RuntimeError("tqdm is broken")

    with tqdm(total=2) as bar:
        monkeypatch.setattr(bar, broken, fail)
        say()
        monkeypatch.delattr(bar, broken)
    assert capsys.readouterr().err.count(LINE + "\n") == 1


def test_a_lock_of_tqdm_that_is_never_released_is_not_waited_for(
    say: Callable[[], None],
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    tqdm: Any,
) -> None:
    class Held:
        def acquire(self, *_: object, **__: object) -> None:
            pytest.fail("it would wait for ever")

    with tqdm(total=2), monkeypatch.context() as patch:
        patch.setattr(tqdm, "_lock", Held())
        say()
    assert LINE in capsys.readouterr().err


@pytest.mark.parametrize("is_closed", [False, True])
def test_a_stderr_that_cannot_be_written_is_no_error_of_the_loop(
    say: Callable[[], None], monkeypatch: pytest.MonkeyPatch, is_closed: bool
) -> None:
    text = io.StringIO()
    text.close()
    monkeypatch.setattr(sys, "stderr", text if is_closed else None)
    say()


def test_tqdm_is_not_imported_for_it(
    say: Callable[[], None], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "tqdm"]:
        monkeypatch.delitem(sys.modules, name)
    say()
    assert capsys.readouterr().err == LINE + "\n"
    assert "tqdm" not in sys.modules
