"""The `trimtab` command. Nothing heavy is imported before it is needed.

main              the command; its help lists the installed plug-ins
commands/         one file per subcommand; `corpus`, `lab` and those around a live run have one each
options           what they share: exit codes, --json, --config, --set, completion
output, progress  what is printed, on standard output and standard error
supervisor        launches a training command again for `trimtab run`
"""
