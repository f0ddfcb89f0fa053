"""The commands of `trimtab lab`, one file each; app.py registers them."""
