"""How a run is cut into blocks, and where the judge is saved and loaded, changes nothing."""

import json
from itertools import pairwise

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from trimtab.core.block import Block, Column
from trimtab.core.config import Config, TextbookConfig
from trimtab.judge import Judge

# Short windows, so that a run of a few hundred records goes through every state many times.
CONFIG = Config(
    textbook=TextbookConfig(
        window=10, recovery_records=6, rise_records=5, norm_steps=8, reopen_records=3
    )
)

values = st.one_of(
    st.floats(0.5, 3.0),
    st.sampled_from([np.nan, np.inf, -np.inf, 9.0, 50.0, 1e300, -1e300]),
)
cells = st.one_of(st.none(), values, values, values)


def column(entries: list[float | None]) -> Column:
    return Column(
        np.array([np.nan if entry is None else entry for entry in entries], dtype=np.float64),
        np.array([entry is not None for entry in entries], dtype=np.bool_),
    )


@st.composite
def runs(draw: st.DrawFn) -> Block:
    length = draw(st.integers(1, 120))
    names = ["loss", "grad_norm", "param_norm", "param_norm/mlp", "loss_scale", "lr"]
    columns = {
        name: column(draw(st.lists(cells, min_size=length, max_size=length)))
        for name in draw(st.sets(st.sampled_from(names), min_size=1))
    }
    if draw(st.booleans()):  # a stretch that only rises
        columns["loss"] = Column.complete(np.linspace(1, 2, length))
    strides = draw(st.lists(st.integers(-3, 5), min_size=length, max_size=length))
    return Block.from_columns(columns, step=np.cumsum(strides))


def verdicts(judge: Judge, pieces: list[Block]) -> str:
    judgements = [judge.feed(piece) for piece in pieces] + [judge.finish()]
    findings = [finding for judgement in judgements for finding in judgement.findings]
    changes = [change for judgement in judgements for change in judgement.changes]
    # By their text, because a NaN is not equal to itself.
    return "\n".join(map(repr, [*findings, *changes, *judge.incidents]))


@settings(max_examples=300, deadline=None)
@given(runs(), st.data())
def test_any_cut_and_any_save_gives_the_same_findings_and_incidents(
    run: Block, data: st.DataObject
) -> None:
    whole = verdicts(Judge(CONFIG), [run])

    edges = sorted(data.draw(st.sets(st.integers(0, len(run)), max_size=8)))
    bounds = [0, *edges, len(run)]
    pieces = [run[a:b] for a, b in pairwise(bounds)]
    assert verdicts(Judge(CONFIG), pieces) == whole
    assert verdicts(Judge(CONFIG), list(run.cut(1))) == whole

    saved_at = data.draw(st.integers(0, len(run)))
    first = Judge(CONFIG)
    head = first.feed(run[:saved_at])
    second = Judge(CONFIG)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    tail = second.feed(run[saved_at:])
    end = second.finish()
    joined = [
        *head.findings,
        *tail.findings,
        *head.changes,
        *tail.changes,
        *end.changes,
        *second.incidents,
    ]
    assert "\n".join(map(repr, joined)) == whole


@settings(max_examples=150, deadline=None)
@given(runs())
def test_every_incident_of_any_run_can_be_explained(run: Block) -> None:
    judge = Judge(CONFIG)
    judge.feed(run)
    judge.finish()
    for incident in judge.incidents:
        opinion = judge.explain(incident, run)
        assert opinion.diagnosis.walk.answers[-1].goes_to == "end"
        assert opinion.action.instruction
