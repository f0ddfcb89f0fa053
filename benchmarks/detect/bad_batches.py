"""Bad batches that really are in the text of the lab: a row that is nearly one token.

The batches of a run follow from its truth.json, so they are served again here and looked at. The
rule was fixed before any run that it is applied to was judged.
"""

import dataclasses
import json
from functools import cache
from itertools import islice
from pathlib import Path

import numpy as np
import numpy.typing as npt

from trimtab.lab.corpus.tokens import CorpusConfig, prepare_corpus
from trimtab.lab.scenarios.scenario import Grade, ModelShape, Scenario
from trimtab.lab.trainer.engines import join_ranks
from trimtab.lab.trainer.intervention import Base, RunParts
from trimtab.lab.trainer.train import build_run
from trimtab.lab.trainer.train_config import Engine

SHARE = 0.9
"""A row with at least this share of one token is bad."""

STEPS_AFTER = 3
"""An incident that begins at a bad batch or at most this many steps later is an answer to it."""


def bad_steps(run_dir: Path) -> tuple[int, ...]:
    """The steps of a run of the lab whose batch has a bad row."""
    return bad_steps_of(_scenario(run_dir))


def _scenario(run_dir: Path) -> Scenario:
    """The scenario that a run was trained from."""
    truth = json.loads((run_dir / "truth.json").read_text(encoding="utf-8"))
    return Scenario(
        kind=truth["kind"],
        seed=truth["setting"]["seed"],
        grade=Grade(truth["grade"] or Grade.SEVERE),
        base=Base(truth["base"]),
        steps=truth["steps"],
        shape=ModelShape(truth.get("shape", ModelShape.SMALL)),
    )


@cache
def bad_steps_of(scenario: Scenario) -> tuple[int, ...]:
    """The same, from the scenario that the run was trained from."""
    # Alone: one process sees the rows of all ranks.
    config = dataclasses.replace(scenario.config(), engine=Engine.ALONE)
    wanted = CorpusConfig(vocab_size=config.model.vocab_size, max_bytes=config.corpus_bytes)
    corpus = prepare_corpus(wanted)
    with join_ranks() as ranks:
        run, forward = build_run(config, corpus, ranks)
        intervention = scenario.intervention()
        if intervention is not None:
            run.clock.by_data = intervention.by_data
            parts = RunParts(
                run=run, forward=forward, ranks=ranks, config=config, corpus=corpus, first_step=0
            )
            run = intervention.attach(parts)
        batches = islice(run.loader, config.steps * config.accumulate)
        return tuple(
            batch.position // config.accumulate
            for batch in batches
            if any(is_bad(row) for row in batch.tokens.numpy())
        )


def is_bad(row: npt.NDArray[np.int64]) -> bool:
    """Whether at least 90 % of a row is one token."""
    return bool(np.bincount(row).max() >= SHARE * len(row))


def follows_bad_batch(onset: int, bad: tuple[int, ...]) -> bool:
    """Whether an incident that begins at this step is an answer to a bad batch."""
    return any(step <= onset <= step + STEPS_AFTER for step in bad)
