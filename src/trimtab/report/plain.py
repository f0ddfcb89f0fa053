"""Text from logs, file names and run names, made harmless before it is shown.

Such text is untrusted: it may hold terminal escapes, markup or a whole table row.
"""

_MARKDOWN = str.maketrans({char: f"\\{char}" for char in "\\`*[]|#"} | {"<": "&lt;", "&": "&amp;"})


def plain(text: str) -> str:
    """The text on one line, without control characters."""
    return "".join(char if char.isprintable() else "?" for char in text)


def markdown(text: str) -> str:
    """The text as it shows in Markdown, with nothing in it taken as markup."""
    return plain(text).translate(_MARKDOWN)
