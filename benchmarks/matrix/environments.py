"""Environment: a virtual environment of its own, and what happens in it."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

INSTALL_SECONDS, RUN_SECONDS = 2400, 2400
LAST_LINES = 3


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
    script = "import sys, ensurepip; print('%d.%d' % sys.version_info[:2])"
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
        """Make it, with a current pip."""
        self.folder.parent.mkdir(parents=True, exist_ok=True)
        subprocess.run([interpreter, "-m", "venv", self.folder], check=True, capture_output=True)
        self.pip("--upgrade", "pip>=25.1")

    def pip(self, *arguments: str) -> None:
        """Install; raises Failed."""
        command = ["python", "-m", "pip", "install", "--quiet", *arguments]
        self.run(command, self.folder, seconds=INSTALL_SECONDS, has_own_home=False)

    def packages(self) -> dict[str, str]:
        """The version of each installed distribution."""
        script = (
            "import importlib.metadata as m, json; "
            "print(json.dumps({d.name.lower(): d.version for d in m.distributions()}))"
        )
        packages: dict[str, str] = json.loads(self.run(["python", "-c", script], self.folder))
        return packages

    def run(
        self,
        command: Sequence[str],
        cwd: Path,
        *,
        codes: Sequence[int] = (0,),
        seconds: int = RUN_SECONDS,
        has_own_home: bool = True,
    ) -> str:
        """What a program of the environment prints; raises Failed for other exit codes."""
        binaries = self.folder / "bin"
        program = [str(binaries / command[0]), *command[1:]]
        variables = {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")}
        variables |= {
            "PATH": f"{binaries}{os.pathsep}{os.environ['PATH']}",
            "VIRTUAL_ENV": str(self.folder),
            "PIP_DISABLE_PIP_VERSION_CHECK": "1",
            "OMP_NUM_THREADS": "1",
            "WANDB_MODE": "offline",
            "TRIMTAB_ALERT_URLS": "apprise:json://127.0.0.1:9/",
        }
        if has_own_home:  # what the tried packages keep there goes with the environment
            variables["HOME"] = str(self.folder)
        try:
            done = subprocess.run(
                program,
                cwd=cwd,
                env=variables,
                capture_output=True,
                text=True,
                timeout=seconds,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise Failed(f"{' '.join(command)}: no end after {seconds} s") from error
        with (self.folder / "printed.txt").open("a", encoding="utf-8") as log:
            log.write(f"$ {' '.join(command)}\n{done.stdout}{done.stderr}\n")
        if done.returncode not in codes:
            lines = (done.stdout + done.stderr).strip().splitlines()
            last = " / ".join(lines[-LAST_LINES:])
            raise Failed(f"{' '.join(command)}: exit code {done.returncode}: {last}")
        return done.stdout

    def remove(self) -> None:
        """Delete it: some take gigabytes."""
        shutil.rmtree(self.folder, ignore_errors=True)
