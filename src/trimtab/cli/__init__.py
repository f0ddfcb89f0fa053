"""The `trimtab` command: one file per subcommand. Nothing heavy is imported before it is needed."""
