import threading

import pytest

from trimtab.cli import progress


def shown(capsys: pytest.CaptureFixture[str], what: str = "train.log", done: int = 31) -> str:
    """Return what slow work on a file shows on standard error."""
    with progress.progress_bar(what) as advance:
        if done:
            advance("Reading", done, 100)
        for thread in threading.enumerate():
            if isinstance(thread, threading.Timer):
                thread.join()
    captured = capsys.readouterr()
    assert captured.out == ""
    return captured.err


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "QUIET_SECONDS", 0.05)
    monkeypatch.delenv("CI", raising=False)


def test_quick_work_shows_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.progress_bar("train.log") as advance:
        advance("Reading", 1, 2)
        advance("Judging", 2, 2)
    captured = capsys.readouterr()
    assert captured.err == captured.out == ""
    assert not any(isinstance(thread, threading.Timer) for thread in threading.enumerate())


@pytest.mark.usefixtures("slow")
def test_a_terminal_shows_a_bar(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    text = shown(capsys)
    assert "Reading" in text
    assert "31%" in text
    assert "trimtab:" not in text


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize(
    ("what", "done", "line"),
    [
        ("train.log", 31, "trimtab: reading train.log, 31 %"),
        ("train.log", 0, "trimtab: reading train.log"),  # nobody has said yet how much it is
        ("", 31, "trimtab: reading, 31 %"),
        ("", 0, "trimtab: working"),
        ("a\x1b[31m", 31, "trimtab: reading a?[31m, 31 %"),
    ],
)
def test_a_file_gets_one_line(
    capsys: pytest.CaptureFixture[str], what: str, done: int, line: str
) -> None:
    assert shown(capsys, what, done) == line + "\n"


@pytest.mark.usefixtures("slow")
@pytest.mark.parametrize(("value", "bars"), [("true", 0), ("1", 0), ("false", 1), ("", 1)])
@pytest.mark.parametrize("is_terminal", ["0", "1"])
def test_ci_gets_neither_though_it_may_have_a_terminal(
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    value: str,
    bars: int,
    is_terminal: str,
) -> None:
    monkeypatch.setenv("TTY_COMPATIBLE", is_terminal)
    monkeypatch.setenv("CI", value)
    assert bool(shown(capsys)) == bool(bars)
