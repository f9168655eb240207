"""Who may use the gateway: everybody on loopback, elsewhere those who show the token."""

from __future__ import annotations

import hmac
import ipaddress

from agl_stream.errors import SettingError


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach a server bound to ``host``."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def check_binding(host: str, token: str) -> None:
    """Raise SettingError when a gateway on ``host`` would be open to other machines."""
    if not is_loopback(host) and not token:
        raise SettingError(
            f"the gateway does not listen on {host} without a token: set AGL_STREAM_GATEWAY_TOKEN "
            "(clients send it as their API key), or bind 127.0.0.1"
        )


def allowed(authorization: str | None, token: str) -> bool:
    """Whether a request with this Authorization header may pass; takes the same time for every wrong token."""
    if not token:
        return True
    scheme, _, shown = (authorization or "").partition(" ")
    return scheme.lower() == "bearer" and hmac.compare_digest(
        shown.strip().encode("utf-8", "surrogatepass"), token.encode()
    )
