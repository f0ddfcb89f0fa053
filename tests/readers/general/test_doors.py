"""How a log gets to the reader: encodings, folders, notebooks, facts that it states."""

import json
from pathlib import Path

import pytest
from tests.readers.shapes import Write

from trimtab.core.errors import LogError
from trimtab.core.run import RunFacts
from trimtab.diagnosis import diagnose
from trimtab.readers import read_log
from trimtab.readers.facts import find_facts

LINES = "".join(f"step {step}: loss {9 - step / 2}\n" for step in range(1, 9))


@pytest.mark.parametrize("encoding", ["utf-16", "utf-8-sig"])
def test_encodings(write: Write, encoding: str) -> None:
    run = read_log(write(LINES.encode(encoding), "train.log"))
    assert run.block.step.tolist() == list(range(1, 9))


def test_the_newest_text_of_a_folder(tmp_path: Path) -> None:
    (tmp_path / "train.out").write_text(LINES)
    run = read_log(tmp_path)
    assert run.path == tmp_path / "train.out"
    assert any("train.out" in note for note in run.notes)


def test_a_notebook(write: Write) -> None:
    head = "<table><tr><th>Step</th>\n<th>Training Loss</th></tr>"
    rows = "".join(f"<tr>\n<td>{n}</td>\n<td>{9 - n}.5</td></tr>" for n in range(1, 6))
    html = {"output_type": "display_data", "data": {"text/html": [head, rows, "</table>"]}}
    printed = {"output_type": "stream", "text": [LINES]}
    for output in (html, printed):
        cells = [{"cell_type": "code", "outputs": [output]}, {"cell_type": "markdown"}]
        run = read_log(write(json.dumps({"cells": cells, "nbformat": 4}), "run.ipynb"))
        assert run.format == "notebook"
        assert run.block.step[0] == 1
        assert run.block.column("loss").values[0] == 8.5
    with pytest.raises(LogError):
        read_log(write('{"cells": [{"cell_type": "code"', "run.ipynb"))


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("  bf16 ....................... True\n  fp16 ..... False\n", RunFacts(dtype="bf16")),
        (
            "{'seed': 1234, 'fp16': True, 'world_size': 8}",
            RunFacts(dtype="fp16", seed=1234, ranks=8),
        ),
        ("python train.py --bf16 --seed 7", RunFacts(dtype="bf16", seed=7)),
        ("dtype: bfloat16, world size: 16", RunFacts(dtype="bf16", ranks=16)),
        (
            "  global_batch_size ............ 1024\n  micro_batch_size ..... 2\n",
            RunFacts(settings={"batch": 1024.0}),
        ),
        ("seed=1 seed=2 bf16=True fp16=True", RunFacts()),
        ("the seed of doubt, fp16 is not used", RunFacts()),
        ("My setup: fp16 on 8xH100, seed 42.", RunFacts(dtype="fp16", seed=42, ranks=8)),
        (
            "training in bf16 with batch size 32 on 4 GPUs",
            RunFacts(dtype="bf16", ranks=4, settings={"batch": 32.0}),
        ),
        ("bf16, A100. Would 2 or 3 help?", RunFacts(dtype="bf16")),
        ("2 nodes with 8xH100 run it", RunFacts()),
        ("training in fp16. Switching to fp32 fixes it.", RunFacts()),
        ("using bf16; with fp16 on the same GPUs it was fine", RunFacts()),
        ("Loading weights in float16", RunFacts()),
        ('"torch_dtype": "float16", GPU 0 is an A100', RunFacts()),
    ],
)
def test_facts_that_a_log_states(text: str, facts: RunFacts) -> None:
    assert find_facts(text) == facts


def test_parts_of_one_run(write: Write) -> None:
    first = write(LINES, "a.log")
    second = write(LINES.replace("step ", "step 1"), "b.log")
    report = diagnose([first, second], facts=RunFacts(dtype="bf16"))
    assert report.block.step.tolist() == [*range(1, 9), *range(11, 19)]
    assert report.facts.dtype == "bf16"
    again = diagnose([first, first])
    assert again.block.attempt.tolist() == [0] * 8 + [1] * 8
