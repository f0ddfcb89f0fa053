"""A judge for agents: given the file of a run, what happened, since when, and what to do?

scripts/bench agents cases FOLDER                      write the files, and truth.json beside them
scripts/bench agents ask FOLDER ANSWERS 'TOOL {path}'  ask a command about each file
scripts/bench agents score FOLDER ANSWERS...           the table for those answers
scripts/bench agents report                            the tools that are known here; published
scripts/bench agents live                              an agent beside 20 live runs; published

How to add a tool: docs/agents.md.
"""

import argparse
import asyncio
import tempfile
from pathlib import Path

from benchmarks.agents.answers import (
    ask_all,
    command_tool,
    group_table,
    read_answers,
    score,
    score_table,
    write_answers,
)
from benchmarks.agents.cases import read_cases, write_cases
from benchmarks.agents.contenders import WANDB_SAMPLED, contenders
from benchmarks.results import Headline, publish

TITLE, LIVE_TITLE = "Agents: what a judge says of a file", "Agents: beside live runs"

NOTE = (
    "Each tool gets a file and says: healthy or incident, since which step, which class, and what "
    "to do. 'Needs nothing' are healthy runs and those whose spikes come back, also while the loss "
    "is up. A rule that only raises alarms is read as asking to act while it fires at the end. "
    "W&B's rule has no dates; it was made to find converged, diverging and NaN runs, and where it "
    "says that a run 'can likely be stopped', that is read as asking to stop it, but for the row "
    "that leaves it out. All rules are written anew from what was published, or are those of "
    "`scripts/bench detect`. On the public runs that are not held out, and on the strangers, "
    "trimtab's limits were chosen or looked at."
)


def report() -> None:
    """Ask every tool that is known here, and publish."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cases = write_cases(folder)
        answers = {}
        for tool, ask in contenders().items():
            print(f"{tool} ...", flush=True)
            answers[tool] = ask_all(ask, folder, cases)
    held_out = [case for case in cases if case.is_held_out]
    body = "\n\n".join(
        [
            NOTE,
            f"### All {len(cases)} files",
            score_table(cases, answers),
            "### By group: all of it right",
            group_table(cases, answers),
            f"### The {len(held_out)} files of held-out public runs",
            score_table(held_out, answers),
        ]
    )
    ours, best = score("", cases, answers["trimtab"]), ("", 0.0, "")
    for tool, given in answers.items():
        row = score("", cases, given)
        share = float(row[-1].split("; ")[1].split(" %")[0])
        if not tool.startswith(("trimtab", "textbook")) and share > best[1]:
            best = (tool, share, row[-1])
    wandb = score("", cases, answers[WANDB_SAMPLED])
    headlines: list[Headline] = [
        ("a file: verdict, date and act all right", ours[-1], "-", f"{best[2]} ({best[0]})"),
        ("told to act on a run that needs nothing", ours[2], "-", f"{wandb[2]} (W&B diagnose_run)"),
    ]
    publish(TITLE, "scripts/bench agents report", body, headlines)


def live() -> None:
    """Let the agent without a model watch twenty runs, and publish."""
    from benchmarks.agents.live import measure

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        cases = write_cases(folder)
        body, headlines = asyncio.run(measure(cases, folder))
    publish(LIVE_TITLE, "scripts/bench agents live", body, headlines)


def main() -> None:
    """Run one command."""
    parser = argparse.ArgumentParser(prog="scripts/bench agents", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    for name in ("cases", "ask", "score"):
        commands.add_parser(name).add_argument("folder", type=Path)
    commands.choices["ask"].add_argument("answers", type=Path)
    commands.choices["ask"].add_argument("tool", help="a command; {path} in it is the file")
    commands.choices["score"].add_argument("answers", type=Path, nargs="+")
    commands.add_parser("report")
    commands.add_parser("live")
    chosen = parser.parse_args()
    if chosen.command == "cases":
        print(f"{len(write_cases(chosen.folder))} files in {chosen.folder / 'files'}")
    elif chosen.command == "ask":
        cases = read_cases(chosen.folder)
        answers = ask_all(command_tool(chosen.tool), chosen.folder, cases)
        write_answers(chosen.answers, answers)
    elif chosen.command == "score":
        tools = {path.stem: read_answers(path) for path in chosen.answers}
        cases = read_cases(chosen.folder)
        print(score_table(cases, tools), group_table(cases, tools), sep="\n\n")
    elif chosen.command == "report":
        report()
    else:
        live()


if __name__ == "__main__":
    main()
