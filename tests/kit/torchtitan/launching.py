"""Starts torchtitan on the CPU, one process per rank."""

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

TARGET = "trimtab.integrations.torchtitan.watched"


def launch(
    folder: Path,
    mode: str | None,
    *flags: str,
    ranks: int = 1,
    faults: dict[str, int] | None = None,
    steps: int = 6,
) -> list[dict[str, Any]]:
    """Train in processes of their own; what each rank has left. Log in `folder/log`."""
    folder.mkdir(exist_ok=True)
    arguments = ["--training.steps", str(steps), "--dump_folder", str(folder / "out")]
    arguments += ["--parallelism.spmd_backend", "partial_dtensor", *flags]
    if mode is not None:
        settings = {"recover.snapshot_every": 5}
        options = {"run_dir": str(folder), "mode": mode, "settings": settings}
        arguments += ["--override.imports", f"{TARGET}={json.dumps(options)}"]
    command = [sys.executable, "-m", "tests.kit.torchtitan.cpu"]
    command += [str(folder / "result"), json.dumps(faults or {}), *arguments]
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    place = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    with (folder / "log").open("w") as log:
        children = [
            subprocess.Popen(
                command,
                stdout=log if rank == 0 else subprocess.DEVNULL,
                stderr=log if rank == 0 else subprocess.DEVNULL,
                env=os.environ | place | {"RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            for rank in range(ranks)
        ]
        expected = -signal.SIGKILL if faults and "kill" in faults else 0
        assert [child.wait(timeout=500) for child in children] == [expected] * ranks
    if expected:
        return []
    return [json.loads((folder / f"result.{rank}").read_text()) for rank in range(ranks)]
