"""Strict scoring: what counts as found, as false, as luck."""

from benchmarks.scoring import chance_recall, onset_rows, score
from tests.kit.public_runs import Label, RealRun
from tests.kit.synthetic import block_of, falling_loss


def event(start: int, end: int, *, kind: str = "spike", confidence: str = "high") -> Label:
    """An event whose peak lies in its middle."""
    peak = (start + end) // 2
    return Label(
        kind=kind, start=start, peak=peak, end=end, outcome="recovered", confidence=confidence
    )


def labelled(rows: int, *labels: Label) -> RealRun:
    """A run that is logged at every step, with these events."""
    block = block_of({"loss": falling_loss(rows, seed=0)}, first_step=0)
    return RealRun(
        name="run", split="tune", label="spikes", tags=("llm",), labels=labels, block=block
    )


def test_only_an_alarm_after_quiet_is_new() -> None:
    assert onset_rows([5, 6, 9, 13, 30]) == [5, 13, 30]


def test_an_alarm_that_is_still_open_finds_nothing() -> None:
    run = labelled(400, event(200, 230))
    still_open = score(run, list(range(180, 300, 2)))
    assert still_open.found[0][1] is None
    assert score(run, [192]).found[0][1] == 192  # ten steps early is in time
    assert score(run, [189]).found[0][1] is None
    assert score(run, [230]).found[0][1] == 230
    assert score(run, [231]).found[0][1] is None


def test_an_episode_is_false_unless_it_touches_an_event() -> None:
    run = labelled(
        400,
        event(200, 230),
        event(300, 300, kind="blip"),
        event(350, 352, confidence="low"),
    )
    result = score(run, [50, 52, 54, 100, 205, 231, 300, 351])
    assert result.false == ((50, 54), (100, 100), (231, 231), (300, 300))
    assert len(result.found) == 1  # neither the blip nor the doubtful one counts


def test_chance_is_what_the_same_windows_hold_off_the_event() -> None:
    run = labelled(2000, event(200, 230))
    assert chance_recall(run, []) == [0.0]
    assert chance_recall(run, list(range(0, 2000, 10))) == [1.0]
    assert chance_recall(run, list(range(195, 231, 5))) == [0.0]  # alarms on the event are no luck
    (half,) = chance_recall(run, list(range(1000, 2000, 10)))
    assert 0.2 < half < 0.8


def test_an_event_as_long_as_the_run_has_no_chance_to_measure() -> None:
    run = labelled(400, event(0, 399))
    assert chance_recall(run, [10]) == []
