"""The server, asked by the real client of the package `mcp`: over stdio."""

import asyncio
import contextlib
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from tests.integrations.agents.hostile import CANARY, hostile_calls, make_places
from tests.kit.synthetic import troubled_run
from typer.testing import CliRunner

from trimtab.cli.main import app
from trimtab.cli.options import ExitCode
from trimtab.integrations.agents.answers import MAX_BYTES
from trimtab.journal import JournalWriter, RunDirectory

mcp = pytest.importorskip("mcp")

ROOT = Path(__file__).parents[3]
TOOLS = {"verdict", "changes", "incident", "signals", "compare", "check", "note", "runs"}


@asynccontextmanager
async def over_stdio(*folders: Path) -> AsyncIterator[Any]:
    """A client whose server is a process of its own, as an agent starts it."""
    words = ["-m", "trimtab.cli", "mcp", *map(str, folders)]
    environment = {name: os.environ[name] for name in ("PATH", "PYTHONPATH") if name in os.environ}
    server = mcp.StdioServerParameters(
        command=sys.executable, args=words, env=environment, cwd=str(folders[0])
    )
    async with mcp.Client(server) as client:
        yield client


async def ask(client: Any, tool: str, **arguments: Any) -> dict[str, Any]:
    """The answer of a tool; its size is checked."""
    result = await client.call_tool(tool, arguments)
    (content,) = result.content
    assert len(content.text) <= MAX_BYTES
    assert not result.is_error, content.text
    found: dict[str, Any] = json.loads(content.text)
    return found


def write_slowly(root: Path, seconds: float, records: int = 1200) -> threading.Thread:
    """A run that is written meanwhile; its loss has a spike at 600 and is NaN from 900 on."""
    block = troubled_run()
    directory = RunDirectory(root)
    directory.write_manifest({"seed": 7})

    def write() -> None:
        with JournalWriter(directory) as journal:
            for row in range(min(records, len(block))):
                signals = {name: float(block.column(name).values[row]) for name in block.columns}
                journal.append(step=int(block.step[row]), signals=signals)
                time.sleep(seconds / records)

    thread = threading.Thread(target=write)
    thread.start()
    return thread


async def follow(client: Any, writer: threading.Thread) -> None:
    """Poll a run that is written, as an agent does, until it stops it."""
    while not (await ask(client, "runs"))["runs"]:
        await asyncio.sleep(0.1)
    answer: dict[str, Any] | None = None
    steps, opened = [], []
    while answer is None or answer["act"] != "stop":
        with contextlib.suppress(AssertionError):  # there is no loss before the first record
            answer = (
                await ask(client, "verdict", run="x1")
                if answer is None
                else await ask(client, "changes", run="x1", since=answer["token"])
            )
            steps += [] if answer["step"] is None else [answer["step"]]
            opened += [one["incident"] for one in answer.get("new", ()) if one["what"] == "opened"]
        if not writer.is_alive() and len(steps) > 200:
            break
        await asyncio.sleep(0.05)
    assert answer is not None
    assert steps == sorted(steps)
    assert len(set(steps)) > 5  # it was seen while it grew
    assert answer["act"] == "stop"
    assert answer["incident"]["class"] == "dead"
    assert len(opened) == len(set(opened))
    number = answer["incident"]["number"]
    explained = await ask(client, "incident", run="x1", n=number)
    assert explained["onset"] >= 880
    read = await client.read_resource(explained["postmortem"])
    assert "never instructions" in read.contents[0].text
    noted = await ask(client, "note", run="x1", text="stopped by the agent")
    assert noted["step"] >= 900
    writer.join()
    last = await ask(client, "verdict", run="x1")
    assert last["status"] == "ended"
    again = await client.call_tool("changes", {"run": "x1", "since": last["token"]})
    assert json.loads(again.content[0].text)["new"] == []
    assert len(again.content[0].text) < 300


def run(work: Callable[[], Awaitable[None]], seconds: float = 120) -> None:
    async def bounded() -> None:
        await asyncio.wait_for(work(), seconds)

    asyncio.run(bounded())


def test_a_run_is_followed_over_stdio_while_it_is_written(tmp_path: Path) -> None:
    async def work() -> None:
        async with over_stdio(tmp_path) as client:
            listed = await client.list_tools()
            assert {tool.name for tool in listed.tools} == TOOLS
            hints = {tool.name: tool.annotations.read_only_hint for tool in listed.tools}
            assert [name for name, reads in hints.items() if not reads] == ["note"]
            await follow(client, write_slowly(tmp_path / "x1", 4))

    run(work)


def test_hostile_questions_over_stdio(tmp_path: Path) -> None:
    allowed, secret = make_places(tmp_path)

    async def work() -> None:
        async with over_stdio(allowed) as client:
            for tool, arguments in hostile_calls(secret):
                try:
                    result = await client.call_tool(tool, arguments)
                except mcp.MCPError as error:
                    text = str(error)
                else:
                    text = "".join(part.text for part in result.content)
                assert len(text) <= MAX_BYTES, (tool, arguments)
                for word in (CANARY, "77.77", "root:", "Traceback"):
                    assert word not in text, (tool, arguments)
            for uri in (
                "trimtab://postmortem/1/1/../secret/log.csv",
                f"trimtab://postmortem/1/1/{secret}/log.csv",
                "trimtab://postmortem/1/1/%2e%2e%2fsecret%2flog.csv",
                "trimtab://postmortem/-1/0/order.csv",
                "trimtab://postmortem/1/99999999999999999999/order.csv",
                "file:///etc/passwd",
            ):
                with pytest.raises(mcp.MCPError) as refused:
                    await client.read_resource(uri)
                assert CANARY not in str(refused.value)
            assert (await ask(client, "verdict", run="order.csv"))["verdict"]
        assert not (secret / "trimtab" / "notes.log").exists()

    run(work)


def test_the_command_says_what_it_needs(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["mcp", str(tmp_path / "none")])
    assert result.exit_code == ExitCode.USAGE
    assert "not a folder" in result.output
    script = (
        "import sys; sys.modules['mcp'] = None\n"
        "sys.argv = ['trimtab', 'mcp', '.']\n"
        "from trimtab.cli.main import main; main()\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, cwd=ROOT
    )
    assert done.returncode == ExitCode.UNREADABLE
    assert ".[mcp]" in done.stderr
