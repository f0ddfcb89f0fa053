"""The subcommands of `trimtab`, one file each."""
