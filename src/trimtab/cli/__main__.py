"""`python -m trimtab.cli`: the command, where its script is not on the path."""

from trimtab.cli.main import main

main()
