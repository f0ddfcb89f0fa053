"""The subcommands of `trimtab`, one file each.

Each imports what is heavy when it is called: `--help` must not wait for numpy or torch.
"""
