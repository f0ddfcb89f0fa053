import pytest

from trimtab.cli import progress


def test_quick_work_shows_no_bar(capsys: pytest.CaptureFixture[str]) -> None:
    with progress.progress_bar() as advance:
        advance("Reading", 1, 2)
        advance("Judging", 2, 2)
    assert capsys.readouterr().err == ""


def test_slow_work_shows_a_bar_on_standard_error(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "QUIET_SECONDS", -1.0)
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.delenv("CI", raising=False)
    with progress.progress_bar() as advance:
        advance("Reading", 1, 2)
    captured = capsys.readouterr()
    assert "Reading" in captured.err
    assert captured.out == ""


def test_a_file_gets_no_bar(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "QUIET_SECONDS", -1.0)
    with progress.progress_bar() as advance:
        advance("Reading", 1, 2)
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(("value", "bars"), [("true", 0), ("1", 0), ("false", 1), ("", 1)])
def test_ci_gets_no_bar_though_it_has_a_terminal(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, value: str, bars: int
) -> None:
    monkeypatch.setattr(progress, "QUIET_SECONDS", -1.0)
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("CI", value)
    with progress.progress_bar() as advance:
        advance("Reading", 1, 2)
    assert bool(capsys.readouterr().err) == bool(bars)
