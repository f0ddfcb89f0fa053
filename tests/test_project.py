"""The project as a whole: public names, layers, what an import costs."""

import os
import re
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

import trimtab

ROOT = Path(__file__).parents[1]


def test_public_names_are_sorted_and_there() -> None:
    assert trimtab.__all__ == sorted(trimtab.__all__)
    for name in trimtab.__all__:
        assert getattr(trimtab, name) is not None
    assert dir(trimtab) == trimtab.__all__


def test_a_name_that_is_not_there_says_so() -> None:
    with pytest.raises(AttributeError, match="no attribute 'wacth'"):
        trimtab.wacth  # noqa: B018


def test_importing_trimtab_loads_nothing_heavy() -> None:
    script = "import sys, trimtab; assert not {'torch', 'numpy', 'rich'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)


def test_the_pure_rooms_work_without_torch() -> None:
    script = (
        "import sys\n"
        "sys.modules['torch'] = None\n"  # any import of torch now raises
        "import trimtab\n"
        "needs_torch = {'watch', 'Checkpoints', 'check', 'replay'}\n"
        "for name in set(trimtab.__all__) - needs_torch: getattr(trimtab, name)\n"
        "import trimtab.diagnosis, trimtab.report.terminal\n"
        "try: trimtab.watch\n"
        "except trimtab.TrimtabError as error: assert '.[torch]' in str(error)\n"
        "else: raise AssertionError('watch came without torch')\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_a_planted_upward_import_breaks_the_contract(tmp_path: Path) -> None:
    package = tmp_path / "trimtab"
    for source in (ROOT / "src" / "trimtab").rglob("*.py"):
        copy = package / source.relative_to(ROOT / "src" / "trimtab")
        copy.parent.mkdir(parents=True, exist_ok=True)
        copy.write_text(source.read_text())
    (tmp_path / "pyproject.toml").write_text((ROOT / "pyproject.toml").read_text())
    # The copy must not be counted as the package when coverage is measured here.
    environment = {name: value for name, value in os.environ.items() if "COV" not in name}
    lint = [
        sys.executable,
        "-c",
        "import sys; sys.path.insert(0, '.'); from importlinter.cli import lint_imports_command; "
        "lint_imports_command(['--no-cache'])",
    ]
    run = partial(
        subprocess.run, lint, cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    clean = run(check=False)
    assert clean.returncode == 0, clean.stdout + clean.stderr

    # A detector must not know the judge, and nothing may judge in the training process.
    planted = ("detect/textbook.py", "live/host/recorder.py", "state/snapshots.py")
    for file in planted:
        with (package / file).open("a") as opened:
            opened.write("\nimport trimtab.judge\n")
    broken = run(check=False)
    assert broken.returncode != 0
    for file in planted:
        module = f"trimtab.{file.removesuffix('.py').replace('/', '.')}"
        assert f"{module} -> trimtab.judge" in broken.stdout


def test_tests_and_benchmarks_share_only_the_kit() -> None:
    imports = re.compile(r"^\s*(?:from|import) ((?:tests|benchmarks)[\w.]*)", re.M)
    for folder, forbidden in (
        ("tests/kit", r"benchmarks|tests(?!\.kit)"),
        ("tests", r"benchmarks"),
        ("benchmarks", r"tests(?!\.kit)"),
    ):
        wrong = [
            f"{path.relative_to(ROOT)}: {name}"
            for path in sorted((ROOT / folder).rglob("*.py"))
            for name in imports.findall(path.read_text(encoding="utf-8"))
            if re.match(forbidden, name)
        ]
        assert not wrong, f"what both need belongs to tests/kit: {wrong}"


def test_watching_a_plain_loop_loads_no_code_for_sharded_tensors() -> None:
    script = (
        "import sys, torch\n"
        "heavy = {'torch.distributed.tensor', 'torch.distributed.fsdp', 'torch._dynamo'}\n"
        "by_torch = heavy & sys.modules.keys()\n"
        "import trimtab\n"
        "trimtab.watch\n"  # before there is an optimizer: making one loads them in torch 2.13
        "assert heavy & sys.modules.keys() == by_torch\n"
        "judging = ('trimtab.judge', 'trimtab.detect', 'trimtab.explain', 'trimtab.report')\n"
        "assert not [name for name in sys.modules if name.startswith(judging)]\n"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
