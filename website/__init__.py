"""The docs site: `docs/` with the pages that are generated, built by Zensical.

`stage` copies the pages to `build/docs` and turns links to files outside `docs/` into links to
pages; `settings_page` and `commands_page` fill in what is generated from the code; `python -m
website` does all of it and builds `build/site`. The reference of the API comes from mkdocstrings.
"""
