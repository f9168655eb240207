"""Which engines a local system runs on, and how their processes are started."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from agl_stream.settings import Settings


@dataclass(frozen=True)
class Engines:
    """`log`: embedded or kafka. `store`: sqlite, cassandra, or as the settings say. `registry`: embedded or apicurio.

    Real ones are servers of this machine below the data folder, one node each (agl_stream.infra.servers).
    """

    log: str = "embedded"
    store: str = ""
    registry: str = "embedded"

    def real(self) -> list[str]:
        """Those that are fetched and started by `agl-stream engines`, by the names they have there."""
        wanted = {"kafka": self.log == "kafka", "cassandra": self.store == "cassandra"}
        wanted["registry"] = self.registry == "apicurio"
        return [name for name, chosen in wanted.items() if chosen]

    def options(self) -> str:
        """What to type after `agl-stream up` to have these again, each with a blank before it."""
        said = {"--engine": self.log, "--store": self.store, "--registry": self.registry}
        return "".join(f" {option} {value}" for option, value in said.items() if value not in ("", "embedded"))

    def fetch(self, settings: Settings, notify: Callable[[str], None]) -> None:
        """Have what the real ones need; nothing when there are none. Raises ToolMissing, FetchFailed."""
        if not self.real():
            return
        from agl_stream.infra.servers.fetch import fetch
        from agl_stream.infra.servers.home import EnginesHome

        fetch(self.real(), home=EnginesHome.default(settings.engines_dir), notify=notify)

    def registry_url(self, host: str, port: int) -> str:
        """The registry's address for its clients."""
        address = f"http://{host}:{port}"
        if self.registry == "apicurio":
            from agl_stream.infra.servers.apicurio import CCOMPAT_PATH

            return address + CCOMPAT_PATH
        return address

    def store_url(self, host: str, port: int, settings: Settings) -> str:
        """The state store's address; empty: SQLite in the data folder."""
        if self.store == "cassandra":
            from agl_stream.infra.servers.cassandra import store_url

            return store_url(f"{host}:{port}")
        return "" if self.store == "sqlite" else settings.store_url
