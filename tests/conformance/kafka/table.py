"""docs/kafka-conformance.md, made from what the cases declare."""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from tests.conformance.kafka.declare import CLIENTS, Declaration, declaration_of

HERE = Path(__file__).parent
DOCUMENT = HERE.parents[2] / "docs" / "kafka-conformance.md"
WRITE_VARIABLE = "AGL_TEST_WRITE_DOCS"
MODULES = (
    "produce",
    "fetch",
    "list_offsets",
    "groups",
    "group_protocol",
    "offsets",
    "transactions",
    "transaction_protocol",
    "topics",
    "configs",
    "cleaning",
)
"""In the order of the document."""

_HEAD = """# The embedded broker and Apache Kafka, case by case

Made from the declarations in `tests/conformance/kafka`; a test holds it to them. To write it anew:
`{variable}=1 .venv/bin/python -m pytest tests/conformance/kafka/test_table.py`.

{count} cases. Each runs on the embedded broker (`make test`; those of cleaning in `make faults`) and on Apache Kafka
(`make engines`), with every client that can: confluent-kafka, aiokafka and kafka-python behind one interface.
"protocol" means single requests without a client, for what clients hide or would never send. A case asserts the same
on both engines; where they differ on purpose it asserts both behaviours, and the difference is listed here.

## Differences

What agl-stream relies on is equal. What is not:

"""
_LACKS = """
## What the clients cannot do

A case that needs one of these is not run with the client.

"""


@dataclass(frozen=True, slots=True)
class Case:
    area: str
    title: str
    declaration: Declaration
    uses: str
    """client, wire or cluster: what the case asks through."""
    function: Callable[..., Any]


def cases() -> Iterator[Case]:
    for name in MODULES:
        module = importlib.import_module(f"tests.conformance.kafka.test_{name}")
        for function_name, function in _tests(module):
            arguments = inspect.signature(function).parameters
            uses = "client" if "use" in arguments else "wire" if "wire" in arguments else "cluster"
            title = function_name.removeprefix("test_").replace("_", " ")
            yield Case(str(module.__doc__), title, declaration_of(function), uses, function)


def _tests(module: ModuleType) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name, value in vars(module).items():
        if name.startswith("test_") and inspect.isfunction(value):
            yield name, value


def render() -> str:
    every = list(cases())
    lines = [_HEAD.format(variable=WRITE_VARIABLE, count=len(every))]
    lines += [f"- *{case.title}*: {case.declaration.differs}.\n" for case in every if case.declaration.differs]
    lines.append(_LACKS)
    for client in CLIENTS:
        lines += [f"- {client.name}, {ability.value}: {reason}.\n" for ability, reason in client.lacks.items()]
    area = ""
    for case in every:
        if case.area != area:
            area = case.area
            columns = [*(client.name for client in CLIENTS), "protocol", "engines"]
            lines.append(f"\n## {area}\n\n| case | {' | '.join(columns)} |\n|---|{'---|' * len(columns)}\n")
        lines.append(_row(case))
    return "".join(lines)


def _row(case: Case) -> str:
    if case.uses == "client":
        cells = [_cell(case.declaration, client) for client in CLIENTS] + [""]
    elif case.uses == "wire":
        cells = ["", "", "", "yes"]
    else:
        cells = ["yes", "", "", ""]
    if case.declaration.only:
        engines = f"{case.declaration.only} only"
    else:
        engines = "differ" if case.declaration.differs else "equal"
    return f"| {case.title} | {' | '.join(cells)} | {engines} |\n"


def _cell(declaration: Declaration, client: Any) -> str:
    reason = declaration.without.get(client.name)
    if reason:
        return f"no: {reason}"
    return "no" if declaration.reason_without(client) else "yes"
