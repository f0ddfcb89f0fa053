"""The `trimtab` command. Nothing heavy is imported before it is needed.

main                 the command
commands/            its subcommands, one file each: check, compare, demo, ...
lab/                 the subcommands of `trimtab lab`
settings             --config and --set
output, progress     what is printed, on standard output and standard error
supervisor           launches a training command again for `trimtab run`
exit_codes           0 clean, 1 findings, 2 usage error, 3 unreadable or no usable loss
"""
