"""The callback in TRL's SFTTrainer, whose loss no forward hook could see."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import transformers
from tests.integrations.hf.test_callback import BY_HAND, At, go_back, logged
from tests.kit.hf import bits, make_sft
from tests.kit.tiny import journal_of

from trimtab.integrations.hf import TrimtabCallback

pytestmark = [
    pytest.mark.filterwarnings("ignore:.*:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:.*:FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*:UserWarning"),
    pytest.mark.slow,  # importing TRL takes longer than the tests
]


@pytest.mark.parametrize(
    "arguments",
    [
        {},
        {"loss_type": "dft"},
        {"label_smoothing_factor": 0.1},
        {"gradient_accumulation_steps": 4, "packing": True},
        {"gradient_checkpointing": True, "gradient_accumulation_steps": 2},
    ],
)
def test_sft_has_the_same_bits_the_true_loss_and_the_way_back(
    arguments: dict[str, Any], tmp_path: Path
) -> None:
    def train(name: str, callback: Any, at: Any = None) -> Any:
        transformers.set_seed(0)
        trainer = make_sft(tmp_path / name, callback, **arguments)
        if at is not None:
            trainer.add_callback(at)
        trainer.train()
        return trainer

    plain = train("plain", None)
    watched = train("watched", TrimtabCallback())
    assert bits(watched) == bits(plain)
    loss = journal_of(tmp_path / "watched").column("loss").values
    np.testing.assert_allclose(loss, logged(plain, "loss"), rtol=1e-4)

    callback = TrimtabCallback(mode="recover", config=BY_HAND)
    back = train("back", callback, at := At(11, lambda: go_back(callback, 9)))
    assert len(at.steps) > 14
    assert bits(back) == bits(plain)
    for name in ("loss", "num_tokens", "entropy"):  # TRL's own counters go back too
        assert logged(back, name)[-5:] == logged(plain, name)[-5:]
