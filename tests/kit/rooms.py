"""Rooms: the folders of tests, what each needs, and which of them a change touches."""

import subprocess
from collections.abc import Collection
from pathlib import Path, PurePosixPath

ROOT = Path(__file__).parents[2]

PURE, TORCH, TRAINERS = "pure", "torch", "trainers"

KINDS = {
    "": PURE,
    "checks/objects": TORCH,
    "checks/test_curve.py": TORCH,
    "cli/test_checkpoints.py": TORCH,
    "cli/test_lab_command.py": TORCH,
    "cli/test_lab_practice.py": TORCH,
    "cli/test_lab_runs.py": TORCH,
    "cli/test_run_torchrun.py": TORCH,
    "corpus/batches/test_loaders.py": TORCH,
    "fuzz": TORCH,
    "integrations": TRAINERS,
    "integrations/agents": PURE,
    "integrations/agents/test_training.py": TORCH,
    "integrations/alerts": PURE,
    "integrations/alerts/test_alert_sink.py": TORCH,
    "integrations/sinks": PURE,
    "lab": TORCH,
    "live": TORCH,
    "old_runs": TORCH,
    "observe/shipping/test_shipping_child.py": TORCH,
    "selftest": TORCH,
    "state": TORCH,
    "test_examples.py": TORCH,
    "test_notebooks.py": TORCH,
    "test_plugin_example.py": TORCH,
}
"""What tests need, by the beginning of their path below tests/; the longest one decides."""

CHANGED = "changed"
"""In `--rooms`: the rooms of the files that differ from the main branch."""


def kind_of(place: str) -> str:
    """Return what the tests of a file below tests/ need: "pure" for "core/test_block.py"."""
    return KINDS[max((start for start in KINDS if _is_below(place, start)), key=len)]


def is_wanted(place: str, rooms: Collection[str]) -> bool:
    """Return whether a file is in one of the rooms: kinds, or folders and files below tests/."""
    return kind_of(place) in rooms or any(_is_below(place, room) for room in rooms)


def _is_below(place: str, start: str) -> bool:
    return PurePosixPath(place).is_relative_to(start)


def rooms_of(names: str) -> frozenset[str]:
    """Return the rooms that `--rooms pure,live,changed` names."""
    rooms = {name.strip() for name in names.split(",")}
    if CHANGED in rooms:
        rooms |= {room for path in changed_files() if (room := room_of(path))}
    return frozenset(rooms - {CHANGED})


def room_of(path: str) -> str | None:
    """Return the room with the tests of a file of the project; None for one without a room.

    >>> room_of("src/trimtab/live/guard.py"), room_of("src/trimtab/judge.py")
    ('live', 'test_judge.py')
    """
    match path.split("/"):
        case ["src", "trimtab", file]:
            return f"test_{file}"
        case ["src", "trimtab", room, *_]:
            return room
        case ["tests", "kit", *_]:
            return None
        case ["tests", room, *_]:
            return room
    return None


def changed_files() -> list[str]:
    """Return the files that differ from where this branch left main, or from the last commit."""
    base = _git("merge-base", "HEAD", "main") or ["HEAD"]
    return _git("diff", "--name-only", base[0]) + _git("ls-files", "--others", "--exclude-standard")


def _git(*arguments: str) -> list[str]:
    """Return the lines that git prints; none where it fails, as without a branch main."""
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True)
    return done.stdout.splitlines() if done.returncode == 0 else []
