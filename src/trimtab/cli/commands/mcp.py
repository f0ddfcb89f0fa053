"""`trimtab mcp`: let agents ask about runs."""

from pathlib import Path
from typing import Annotated

import typer


def mcp(
    folders: Annotated[
        list[Path], typer.Argument(help="Folders of runs and logs; nothing else can be read.")
    ],
) -> None:
    """Answer agents by the Model Context Protocol: verdicts, changes, curves, notes.

    An agent starts it and talks to its standard input and output. Agents read the given folders
    and can add notes. No tool acts on a run. Needs trimtab[mcp].

    Example: trimtab mcp runs

    Exit code: 0 the agent left, 2 usage error, 3 the extra is not installed.
    """
    from trimtab.integrations.agents.server import serve

    serve(folders)
