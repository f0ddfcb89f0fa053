"""The commands of `trimtab lab`, one file each."""
