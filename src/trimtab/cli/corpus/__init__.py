"""The commands of `trimtab corpus`."""
