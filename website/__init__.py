"""The docs site: `docs/` with the pages that are generated, built by Zensical.

`stage` copies the pages to `build/docs` and turns links to files outside `docs/` into links to
pages, and `python -m website` builds `build/site`. What is generated from the code stands in docs/
itself (`python -m website.reference`), so a code host shows it too.
"""
