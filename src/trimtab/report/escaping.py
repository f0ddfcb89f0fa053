"""Make text from logs, file names and run names safe to show.

Such text is untrusted: it may hold terminal escapes, markup or a whole table row.
"""

_MARKDOWN = str.maketrans({char: f"\\{char}" for char in "\\`*[]|#"} | {"<": "&lt;", "&": "&amp;"})


def printable(text: str) -> str:
    """The text on one line, with control characters replaced by `?`."""
    return "".join(char if char.isprintable() else "?" for char in text)


def escape_markdown(text: str) -> str:
    """The text as it shows in Markdown, with none of it read as markup."""
    return printable(text).translate(_MARKDOWN)
