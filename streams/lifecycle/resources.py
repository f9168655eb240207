"""Which resources exist: what the fold needs to pin a request to a version."""

from __future__ import annotations

from agl_stream.schemas.events import Event


class ResourceView:
    """The versions published so far. Fed by ResourcesPublished in any order, any number of times."""

    def __init__(self) -> None:
        self._versions: dict[str, set[int]] = {}
        self._latest: tuple[int, int, str] | None = None

    def published(self, event: Event) -> None:
        """Take note of a ResourcesPublished."""
        resources_id, version = event["resources_id"], event["version"]
        self._versions.setdefault(resources_id, set()).add(version)
        entry = (event["occurred_at_us"], version, resources_id)
        if self._latest is None or entry > self._latest:
            self._latest = entry

    def pin(self, resources_id: str | None, version: int | None) -> tuple[str | None, int | None] | None:
        """The resources a request runs with; None when what it asks for was never published.

        Without an id: the latest published, by the time of its event, or (None, None) when nothing has been.
        Without a version: the greatest of that id.
        """
        if resources_id is None:
            if self._latest is None:
                return None, None
            return self._latest[2], self._latest[1]
        versions = self._versions.get(resources_id)
        if not versions:
            return None
        if version is None:
            return resources_id, max(versions)
        return (resources_id, version) if version in versions else None
