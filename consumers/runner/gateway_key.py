"""The gateway's token for agents: lent to models behind this runner's gateway, and to nobody else's."""

from __future__ import annotations

from urllib.parse import urlsplit

from agl_stream.settings import Settings
from agl_stream.types import LLM, NamedResources

_PORTS = {"http": 80, "https": 443}


def with_gateway_key(resources: NamedResources, settings: Settings) -> NamedResources:
    """The resources as an agent gets them: a model whose endpoint is ``AGL_STREAM_GATEWAY_URL`` and that has no key
    of its own has ``AGL_STREAM_GATEWAY_TOKEN`` as its ``api_key``. The token has no place in resources on the log:
    whoever publishes them may be trusted with less than the runner."""
    if not settings.gateway_token:
        return resources
    return {
        name: resource.with_lent_key(settings.gateway_token)
        if isinstance(resource, LLM)
        and not resource.api_key
        and is_below(resource.get_base_url(), settings.gateway_url)
        else resource
        for name, resource in resources.items()
    }


def is_below(address: str, root: str) -> bool:
    """Whether a URL leads to the same server as ``root``, and there to ``root``'s path or below it."""
    try:
        (server, path), (wanted, prefix) = _parts(address), _parts(root)
    except ValueError:
        return False
    # a client that resolves dots would leave the prefix
    return server == wanted and (path + "/").startswith(prefix + "/") and ".." not in path and "%" not in path


def _parts(url: str) -> tuple[tuple[str, str | None, int | None], str]:
    parts = urlsplit(url)
    scheme = parts.scheme.lower()
    return (scheme, parts.hostname, parts.port or _PORTS.get(scheme)), parts.path.rstrip("/")
