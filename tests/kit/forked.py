"""Scripts and commands in a process of their own, forked: a new one would import torch again.

    forked.run("-m", "trimtab.cli", "diagnose", log)      as subprocess.run, output captured as text
    forked.Forked(["-c", SCRIPT, folder], stdout=PIPE)    as subprocess.Popen

What is tested by such a process cannot be an import, or what it needs; else it is what a new one
does: its own signal handlers, exit handlers, log handlers, warnings and environment.
"""

import atexit
import faulthandler
import gc
import logging
import os
import runpy
import signal
import subprocess
import sys
import threading
import traceback
import types
import warnings
import weakref
from pathlib import Path
from typing import Any

QUIET = (DeprecationWarning, PendingDeprecationWarning, ImportWarning, ResourceWarning)
"""Warnings that Python does not show by default."""


class Forked(subprocess.Popen[str]):
    """A process with the arguments of a Python interpreter: `-m MODULE`, `-c TEXT` or a script."""

    def __init__(self, arguments: list[str], **options: Any) -> None:
        super().__init__(arguments, text=True, **options)

    def _execute_child(self, arguments: Any, *options: Any) -> None:
        """Fork; what `Popen` has prepared is the same on all platforms with a fork."""
        _, _, _, _, cwd, env, _, _, _, *pipes = options
        ours, theirs = [pipes[1], pipes[2], pipes[4]], [pipes[0], pipes[3], pipes[5]]
        sys.stdout.flush()
        sys.stderr.flush()
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a process with threads is forked on purpose
            pid = os.fork()
        if pid == 0:
            _Child(list(map(str, arguments)), theirs, cwd, env).live()
        self.pid, self._child_created = pid, True
        self._close_pipe_fds(  # type: ignore[attr-defined]
            theirs[0], ours[0], ours[1], theirs[1], ours[2], theirs[2]
        )


def run(
    *arguments: Any, timeout: float = 120.0, **options: Any
) -> subprocess.CompletedProcess[str]:
    """Run a process to its end, and return what it printed; given no input, it has none."""
    given = options.pop("input", None)
    pipes = dict.fromkeys(("stdout", "stderr"), subprocess.PIPE)
    stdin = subprocess.DEVNULL if given is None else subprocess.PIPE
    with Forked(list(map(str, arguments)), stdin=stdin, **pipes, **options) as process:
        try:
            output, errors = process.communicate(given, timeout=timeout)
        except BaseException:
            process.kill()
            raise
    return subprocess.CompletedProcess(arguments, process.returncode, output, errors)


class _Child:
    """The process from the fork to its end."""

    def __init__(self, arguments: list[str], pipes: list[int], cwd: Any, env: Any) -> None:
        self._arguments, self._pipes, self._cwd, self._env = arguments, pipes, cwd, env

    def live(self) -> None:
        code = 70
        try:
            self._forget_the_parent()
            code = self._run()
            threading._shutdown()  # type: ignore[attr-defined]
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)

    def _forget_the_parent(self) -> None:
        gc.freeze()  # what the parent has left open is not closed here
        for number, pipe in enumerate(self._pipes):
            if pipe >= 0:
                os.dup2(pipe, number)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        if self._env is not None:
            os.environ.clear()
            os.environ.update(self._env)
        if self._cwd is not None:
            os.chdir(self._cwd)
        is_prompt = "PYTHONUNBUFFERED" in os.environ
        sys.stdin = os.fdopen(0, closefd=False)
        sys.stdout = os.fdopen(1, "w", closefd=False, buffering=1 if is_prompt else -1)
        sys.stderr = os.fdopen(2, "w", closefd=False, buffering=1)
        faulthandler.disable()
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        sys.excepthook, sys.unraisablehook = sys.__excepthook__, sys.__unraisablehook__
        threading.excepthook = threading.__excepthook__
        atexit._clear()
        weakref.finalize._registry.clear()  # type: ignore[attr-defined]
        weakref.finalize._registered_with_atexit = False  # type: ignore[attr-defined]
        warnings.resetwarnings()
        for category in QUIET:
            warnings.simplefilter("ignore", category)
        logging.root.handlers.clear()
        logging.root.setLevel(logging.WARNING)
        if "torch" in sys.modules:  # a parent that ran backward left a thread pool
            sys.modules["torch"].set_num_threads(1)

    def _run(self) -> int:
        """Run what the arguments say, and return the exit code."""
        first, *rest = self._arguments
        try:
            if first == "-m":
                sys.argv = rest
                runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
            elif first == "-c":
                sys.argv = ["-c", *rest[1:]]
                main = sys.modules["__main__"] = types.ModuleType("__main__")
                exec(compile(rest[0], "<string>", "exec"), vars(main))
            else:
                sys.argv = self._arguments
                sys.path.insert(0, str(Path(first).resolve().parent))
                runpy.run_path(first, run_name="__main__")
        except SystemExit as end:
            if end.code is None or isinstance(end.code, int):
                return end.code or 0
            sys.stderr.write(f"{end.code}\n")
            return 1
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_DFL)
            os.kill(os.getpid(), signal.SIGINT)
        except BaseException:
            traceback.print_exc()
            return 1
        return 0
