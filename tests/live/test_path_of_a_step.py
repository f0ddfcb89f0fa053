"""The page on architecture names the functions of a step; a traced step calls them in its order."""

import re
import sys
from pathlib import Path
from types import FrameType

import torch
from tests.kit.user_loop import take_step

import trimtab

ROOT = Path(__file__).parents[2]
SOURCE = Path(trimtab.__file__).parent


def path_on_the_page() -> list[tuple[str, str]]:
    """The file and the function of each row."""
    text = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    section = text.split("## The path of a step\n")[1].split("\n## ")[0]
    rows = re.findall(r"(?m)^\|.*?\| `([\w.]+)` \| `([\w/]+\.py)` \|", section)
    return [(file, function) for function, file in rows]


def test_a_step_calls_them_in_this_order(tmp_path: Path) -> None:
    calls: list[tuple[str, str]] = []

    def note(frame: FrameType, event: str, _: object) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(SOURCE):
            calls.append((path.relative_to(SOURCE).as_posix(), frame.f_code.co_qualname))

    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.AdamW(model.parameters())

    def step() -> None:
        take_step(guard, optimizer, model(torch.randn(4, 8)).square().mean(), clip=1.0, tokens=4)

    with trimtab.watch(model, optimizer, run_dir=tmp_path, mode="protect", observer=False) as guard:
        for _ in range(4):  # records arrive two steps later
            step()
        before = sys.getprofile()
        sys.setprofile(note)
        try:
            step()
        finally:
            sys.setprofile(before)
    wanted = path_on_the_page()
    assert len(wanted) > 10
    later = iter(calls)
    missing = [function for function in wanted if function not in later]
    assert not missing
