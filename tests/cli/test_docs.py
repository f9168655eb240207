"""The documents say what the code does."""

from __future__ import annotations

import re
from dataclasses import fields
from pathlib import Path

from agl_stream.cli.main import ONE_LINE_HELP
from agl_stream.settings import Settings
from agl_stream.settings_doc import with_current_table

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def test_the_settings_table_is_current() -> None:
    document = (ROOT / "docs" / "operations.md").read_text()
    assert with_current_table(document) == document, "run: python -m agl_stream.settings_doc docs/operations.md"


def test_documents_name_only_verbs_and_settings_that_exist() -> None:
    names = {f"AGL_STREAM_{spec.name.upper()}" for spec in fields(Settings)}
    for path in DOCUMENTS:
        text = path.read_text()
        for verb in re.findall(r"(?:`|^ {4})agl-stream ([a-z]+)\b", text, re.MULTILINE):
            assert verb in ONE_LINE_HELP, f"{path.name} speaks of `agl-stream {verb}`"
        for name in re.findall(r"AGL_STREAM_[A-Z_]*[A-Z]", text):
            assert name in names, f"{path.name} speaks of {name}"


def test_links_between_documents_lead_somewhere() -> None:
    for path in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#:]+)\)", path.read_text()):
            assert (path.parent / target).exists(), f"{path.name} links to {target}"
