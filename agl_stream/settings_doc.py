"""The table of settings in docs/operations.md, made from their one declaration.

`python -m agl_stream.settings_doc docs/operations.md` brings the file up to date; a test checks that it is.
"""

from __future__ import annotations

import sys
from dataclasses import fields
from pathlib import Path

from agl_stream.settings import ENV_PREFIX, Settings

BEGIN = "<!-- settings: made by python -m agl_stream.settings_doc, do not edit -->"
END = "<!-- end of settings -->"


def settings_table() -> str:
    """All settings as a Markdown table: environment name, default, meaning."""
    lines = ["| environment | default | meaning |", "|---|---|---|"]
    for spec in fields(Settings):
        default = "" if spec.default == "" else f"`{spec.default}`"
        meaning = spec.metadata["doc"].replace("|", "\\|")
        lines.append(f"| `{ENV_PREFIX}{spec.name.upper()}` | {default} | {meaning} |")
    return "\n".join(lines)


def with_current_table(document: str) -> str:
    """The document with the table between its two marks replaced; ValueError when it lacks them."""
    before, begin, rest = document.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the document lacks the lines {BEGIN} and {END}")
    return f"{before}{BEGIN}\n{settings_table()}\n{END}{after}"


if __name__ == "__main__":
    path = Path(sys.argv[1])
    path.write_text(with_current_table(path.read_text()))
