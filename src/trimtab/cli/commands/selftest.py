"""`trimtab selftest`: does the guard keep its promises on this machine?"""

from typing import Annotated

import typer

from trimtab.cli.options import AsJson, ExitCode, print_json


def selftest(
    device: Annotated[
        str | None,
        typer.Option(help="cpu, cuda, cuda:1, ...", show_default="the GPU if there is one"),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check on this machine that a guard changes no bit, reads nothing, and protects.

    Trains a small model on the device for a few seconds per check. Nothing is written outside a
    temporary folder.

    Example: trimtab selftest

    Exit code: 0 no check failed, 1 some failed, 2 usage error, 3 torch is missing.
    """
    # Imported here so that `trimtab --help` does not wait for torch.
    from trimtab.cli import output
    from trimtab.core.text import printable

    with output.reported_errors():
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
    if as_json:
        print_json("selftest", found.to_dict())
    else:
        typer.echo(printable(found.summary()))
    raise typer.Exit(ExitCode.CLEAN if found.has_passed else ExitCode.FINDINGS)
