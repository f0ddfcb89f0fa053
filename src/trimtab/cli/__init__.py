"""The `trimtab` command. Nothing heavy is imported before it is needed.

main              the command; its help lists the installed plug-ins
commands/         the subcommands: one file each, those of `corpus` in one, those of `lab` in three
options           what they share: exit codes, --json, --config, --set, completion
output, progress  what is printed, on standard output and standard error
supervisor        launches a training command again for `trimtab run`
"""
