"""Files and calls of one step, of `watch()`, late assignments and the largest class: by trace.

scripts/bench observer trace --src OTHER_CHECKOUT/src    another version besides
"""

import argparse
import ast
import json
import os
import subprocess
import sys
import tempfile
from collections import Counter
from pathlib import Path

from benchmarks.results import publish, table

CHILD = """
import json, os, sys, tempfile
import torch

HOME = os.path.join(sys.argv[1], "trimtab")


class Trace:
    def __init__(self):
        self.files, self.calls = set(), 0

    def __enter__(self):
        sys.setprofile(self._seen)
        return self

    def __exit__(self, *_):
        sys.setprofile(None)

    def _seen(self, frame, what, argument):
        if what == "call" and frame.f_code.co_filename.startswith(HOME):
            self.calls += 1
            self.files.add(frame.f_code.co_filename)

    def result(self):
        return [len(self.files), self.calls]


def build(folder, mode):
    import trimtab
    torch.manual_seed(0)
    layers = [torch.nn.Linear(16, 16) for _ in range(5)]
    model = torch.nn.Sequential(*layers)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    return model, optimizer, trimtab.watch(model, optimizer, run_dir=folder, mode=mode)


def step(model, optimizer, guard, *, is_bad=False):
    inputs = torch.randn(4, 16)
    loss = (model(inputs) - inputs).square().mean() * (float("nan") if is_bad else 1.0)
    guard.record(loss=loss)
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()


def of_step(mode, bad_at=None, flip_at=None):
    found = []
    with tempfile.TemporaryDirectory() as folder:
        model, optimizer, guard = build(folder, mode)
        with guard:
            for number in range(96):
                if number == flip_at:
                    # Through a view of the memory, as a flip: no version counter moves.
                    model[0].weight.detach().numpy().view("int32")[3, 3] ^= 1 << 27
                with Trace() as trace:
                    step(model, optimizer, guard, is_bad=number == bad_at)
                found.append(trace.result())
    return found


with tempfile.TemporaryDirectory() as folder:
    with Trace() as trace:
        model, optimizer, guard = build(folder, "observe")
    watch = trace.result()
    guard.close()
observed = of_step("observe")
protected = of_step("protect", bad_at=82)
undone = of_step("recover", flip_at=83)
print(json.dumps({
    "an observed step": min(observed[60:90], key=lambda one: one[1]),
    "a protected step with NaN": protected[82],
    "the step that undoes a flip": max(undone[83:88], key=lambda one: one[1]),
    "watch()": watch,
}))
"""


def main() -> None:
    """Trace, count and publish."""
    parser = argparse.ArgumentParser(prog="scripts/bench observer trace")
    parser.add_argument("--src", type=Path, help="the src folder of another version")
    parser.add_argument("--dry", action="store_true", help="leave RESULTS.md as it is")
    given = parser.parse_args()
    sources = {"now": Path(__file__).parents[2] / "src"}
    if given.src:
        sources["before"] = given.src.absolute()
    rows = []
    for name, source in sources.items():
        traced = _trace(source)
        rows += [[name, what, files, calls] for what, (files, calls) in traced.items()]
        classes = _attributes(source)
        rows.append([name, "late assignments in live", _late_assignments(source), ""])
        rows.append([name, f"attributes of {classes[0][0]}", classes[0][1], ""])
    body = "Calls into trimtab and files that they are in; the training thread alone.\n\n" + table(
        ["version", "what", "files", "calls"], rows
    )
    print(body)
    if not given.dry:
        publish("Observer: a step by trace", "scripts/bench observer trace", body)


def _trace(source: Path) -> dict[str, tuple[int, int]]:
    with tempfile.NamedTemporaryFile("w", suffix=".py") as file:
        file.write(CHILD)
        file.flush()
        done = subprocess.run(
            [sys.executable, file.name, str(source)],
            env={**os.environ, "PYTHONPATH": str(source), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            check=True,
        )
    found: dict[str, tuple[int, int]] = json.loads(done.stdout.splitlines()[-1])
    return found


def _late_assignments(source: Path) -> int:
    """Count assignments to an attribute of an object that a method did not make itself."""
    count = 0
    for path in (source / "trimtab" / "live").rglob("*.py"):
        for function in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(function, ast.FunctionDef):
                count += sum(map(_is_late, ast.walk(function)))
    return count


def _is_late(node: ast.AST) -> bool:
    """Return whether it is `self.part.attribute = ...`: an object set from outside."""
    targets = node.targets if isinstance(node, ast.Assign) else []
    return any(
        isinstance(target, ast.Attribute)
        and isinstance(target.value, ast.Attribute)
        and target.value.attr != "grad"
        for target in targets
    )


def _attributes(source: Path) -> list[tuple[str, int]]:
    """Return the classes of live with their number of attributes, the largest first."""
    found: Counter[str] = Counter()
    for path in (source / "trimtab" / "live").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                names = {
                    target.attr
                    for inner in ast.walk(node)
                    if isinstance(inner, ast.Assign | ast.AnnAssign | ast.AugAssign)
                    for target in _targets(inner)
                }
                found[node.name] = len(names)
    return found.most_common()


def _targets(node: ast.Assign | ast.AnnAssign | ast.AugAssign) -> list[ast.Attribute]:
    listed = node.targets if isinstance(node, ast.Assign) else [node.target]
    flat = [
        one
        for target in listed
        for one in (target.elts if isinstance(target, ast.Tuple) else [target])
    ]
    return [
        one
        for one in flat
        if isinstance(one, ast.Attribute)
        and isinstance(one.value, ast.Name)
        and one.value.id == "self"
    ]


if __name__ == "__main__":
    main()
