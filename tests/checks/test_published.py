"""Published runs must pass without an error, and each warning on them is defended in the docs."""

import json
import re
from pathlib import Path

import pytest
from tests.checks.published import PUBLISHED
from tests.kit.public_runs import MISSING, RUNS

from trimtab.checks import check_config
from trimtab.checks.rule import Level

MANIFEST = RUNS / "manifest.json"


def defended() -> dict[str, set[str]]:
    """Return the rows of the table: run, rule, why."""
    section = Path(__file__).with_name("published_warnings.md").read_text(encoding="utf-8")
    rows: dict[str, set[str]] = {}
    for run, rule in re.findall(
        r"^\| ([^|]+?) \| (TT\d{3}) \| [^|]{20,} \|$", section, re.MULTILINE
    ):
        rows.setdefault(run, set()).add(rule)
    return rows


def test_none_raises_an_error_every_warning_is_defended_and_every_defence_is_needed() -> None:
    raised: dict[str, set[str]] = {}
    for run, (_, settings) in PUBLISHED.items():
        for finding in check_config(settings).findings:
            assert finding.level is not Level.ERROR, (run, finding.what)
            if finding.level is Level.WARNING:
                raised.setdefault(run, set()).add(finding.rule.id)
    assert raised == defended()


@pytest.mark.skipif(not MANIFEST.exists(), reason=MISSING)
@pytest.mark.parametrize(
    ("run", "entry"),
    [
        ("MLPerf 5.1 Llama 3.1 8B, Cisco", "mlperf51_cisco_llama31_8b_n16_r1"),
        ("MLPerf 5.1 Llama 3.1 8B, NVIDIA", "mlperf51_nvidia_llama31_8b_ngpu8_r0"),
        ("MLPerf 5.1 Flux.1, Oracle", "mlperf51_oracle_flux1_n2_r9"),
    ],
)
def test_the_mlperf_settings_are_those_of_the_logs(run: str, entry: str) -> None:
    logged = json.loads(MANIFEST.read_text())[entry]["hparams"]
    ours = PUBLISHED[run][1]
    names = {
        "lr": "opt_base_learning_rate",
        "beta2": "opt_adamw_beta_2",
        "epsilon": "opt_adamw_epsilon",
        "weight_decay": "opt_adamw_weight_decay",
        "clip_norm": "opt_gradient_clip_norm",
        "final_lr": "opt_end_learning_rate",
        "warmup_steps": "opt_learning_rate_warmup_steps",
        "batch_size": "global_batch_size",
        "seq_len": "max_sequence_length",
    }
    for field, name in names.items():
        assert ours.get(field) == logged.get(name), field
