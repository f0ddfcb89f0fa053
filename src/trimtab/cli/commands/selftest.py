"""`trimtab selftest`: does the guard keep its promises on this machine?"""

from typing import Annotated

import typer

from trimtab.cli.options import AsJson, ExitCode, json_text


def selftest(
    device: Annotated[
        str | None,
        typer.Option(help="cpu, cuda, cuda:1, ...", show_default="the GPU if there is one"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check on this machine that a guard changes no bit, reads nothing, and protects.

    Trains a small model on the device for a few seconds per check, and measures what each mode
    costs. The results are kept in a JSON file in the folder for temporary files, to be sent back.

    Example: trimtab selftest

    Exit code: 0 no check failed, 1 some failed, 2 usage error, 3 torch is missing.
    """
    from trimtab.core.text import printable

    try:
        from trimtab.selftest.run import SelfTestResult, run_selftest
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        from trimtab.core.errors import MissingExtra

        raise MissingExtra.of("trimtab selftest needs torch", "torch") from None

    def show(result: SelfTestResult) -> None:
        if not as_json:
            typer.echo(printable(result.line()))

    found = run_selftest(device, show)
    text = json_text("selftest", found.to_dict())
    if as_json:
        typer.echo(text)
    else:
        for line in (*found.summary(), *_keep(text)):
            typer.echo(printable(line))
    raise typer.Exit(ExitCode.CLEAN if found.has_passed else ExitCode.FINDINGS)


def _keep(text: str) -> list[str]:
    """Write the results to a file of their own, and return what to do with it."""
    import os
    import tempfile

    try:
        number, name = tempfile.mkstemp(prefix="trimtab-selftest-", suffix=".json")
        with os.fdopen(number, "w", encoding="utf-8") as file:
            file.write(text + "\n")
    except OSError as error:
        return [f"To send back: the output of trimtab selftest --json ({error})."]
    return [
        f"To send back, in an issue, also if all passed: {name}",
        "It has what is printed above, and nothing of your data.",
    ]
