"""Environment: a virtual environment of its own, and what happens in it."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

INSTALL_SECONDS, RUN_SECONDS = 2400, 2400
LAST_LINES = 3


class Package(NamedTuple):
    """An installed distribution."""

    version: str
    requires: tuple[Requirement, ...]


class Failed(Exception):
    """A program did not end as it had to; the message has its last lines."""


def find_interpreter(version: str) -> Path | None:
    """An interpreter of this minor version on the machine; None if there is none."""
    found = shutil.which(f"python{version}")
    pyenv = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    candidates = [Path(found)] if found else []
    candidates += sorted(pyenv.glob(f"{version}.*/bin/python"))
    if sys.version_info[:2] == tuple(map(int, version.split("."))):
        candidates.insert(0, Path(sys.executable))
    script = "import sys; print('%d.%d' % sys.version_info[:2])"
    for candidate in candidates:
        run = subprocess.run([candidate, "-c", script], capture_output=True, text=True, check=False)
        if run.returncode == 0 and run.stdout.strip() == version:
            return candidate
    return None


@dataclass(frozen=True, slots=True)
class Environment:
    """A virtual environment below a folder."""

    folder: Path

    def create(self, interpreter: Path) -> None:
        """Make it, empty: the pip of this process installs into it."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        command = [str(interpreter), "-m", "venv", "--without-pip", str(self.folder)]
        subprocess.run(command, check=True, capture_output=True)

    def pip(self, *arguments: str) -> None:
        """Install; raises Failed."""
        place = ["--python", str(self.folder / "bin" / "python")]
        command = [sys.executable, "-m", "pip", *place, "install", "--quiet", "--no-compile"]
        done = subprocess.run(
            [*command, *arguments],
            env=_variables(),
            capture_output=True,
            text=True,
            timeout=INSTALL_SECONDS,
            check=False,
        )
        if done.returncode:
            raise Failed(f"pip install {' '.join(arguments)}: {_last(done.stderr)}")

    def packages(self) -> dict[str, Package]:
        script = (
            "import importlib.metadata as m, json; "
            "print(json.dumps([(d.name, d.version, d.requires or []) for d in m.distributions()]))"
        )
        found = json.loads(self.run(["python", "-c", script], self.folder))
        return {
            canonicalize_name(name): Package(version, tuple(map(Requirement, requires)))
            for name, version, requires in found
        }

    def run(
        self,
        command: Sequence[str],
        cwd: Path,
        *,
        codes: Sequence[int] = (0,),
    ) -> str:
        """What a program of the environment prints; raises Failed for other exit codes."""
        binaries = self.folder / "bin"
        program = [str(binaries / command[0]), *command[1:]]
        variables = _variables() | {
            "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
            "VIRTUAL_ENV": str(self.folder),
            "HOME": str(self.folder),  # what the tried packages keep there goes with it
            "OMP_NUM_THREADS": "1",
            "WANDB_MODE": "offline",
        }
        try:
            done = subprocess.run(
                program,
                cwd=cwd,
                env=variables,
                capture_output=True,
                text=True,
                timeout=RUN_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise Failed(f"{' '.join(command)}: no end after {RUN_SECONDS} s") from error
        with (self.folder / "printed.txt").open("a", encoding="utf-8") as log:
            log.write(f"$ {' '.join(command)}\n{done.stdout}{done.stderr}\n")
        if done.returncode not in codes:
            said = _last(done.stdout + done.stderr)
            raise Failed(f"{' '.join(command)}: exit code {done.returncode}: {said}")
        return done.stdout

    def remove(self) -> None:
        """Delete it: some take gigabytes."""
        shutil.rmtree(self.folder, ignore_errors=True)


def _variables() -> dict[str, str]:
    """The environment variables, without those that would add packages of this process."""
    return {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}


def _last(text: str) -> str:
    return " / ".join(text.strip().splitlines()[-LAST_LINES:])
