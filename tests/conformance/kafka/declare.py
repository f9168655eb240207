"""What a case declares about itself: the abilities it needs of a client, and where engines differ on purpose.

The table in docs/kafka-conformance.md is made from these declarations, and the runs follow them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, TypeVar

from tests.conformance.kafka.clients.aio import AiokafkaClient
from tests.conformance.kafka.clients.confluent import ConfluentClient
from tests.conformance.kafka.clients.kafka_python import KafkaPythonClient
from tests.conformance.kafka.clients.port import Ability, Client

CLIENTS: tuple[Client, ...] = (ConfluentClient(), AiokafkaClient(), KafkaPythonClient())


@dataclass(frozen=True, slots=True)
class Declaration:
    needs: tuple[Ability, ...] = ()
    differs: str | None = None
    """What the embedded broker does otherwise, and why. The case asserts both."""
    only: str | None = None
    """The one engine that the case is about."""
    without: dict[str, str] = field(default_factory=dict)
    """Clients for which this one case cannot be asked, with the reason."""

    def clients(self) -> list[Client]:
        return [
            client for client in CLIENTS if not set(self.needs) & set(client.lacks) and client.name not in self.without
        ]

    def reason_without(self, client: Client) -> str:
        """Why the case is not run with a client; empty when it is."""
        reasons = [client.lacks[ability] for ability in self.needs if ability in client.lacks]
        return "; ".join(reasons) or self.without.get(client.name, "")


Case = TypeVar("Case", bound=Callable[..., Any])


def case(
    *needs: Ability, differs: str | None = None, only: str | None = None, without: dict[str, str] | None = None
) -> Callable[[Case], Case]:
    """Declare a case; one that declares nothing needs nothing and is equal everywhere."""

    def declare(function: Case) -> Case:
        function.declaration = Declaration(needs, differs, only, without or {})  # type: ignore[attr-defined]
        return function

    return declare


def declaration_of(function: Callable[..., Any]) -> Declaration:
    return getattr(function, "declaration", Declaration())
