"""Asking a server over HTTP whether it serves."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request

_PATIENCE_SECONDS = 2.0


def answers(url: str) -> bool:
    """Whether a GET of `url` is answered with 200."""
    try:
        with urllib.request.urlopen(url, timeout=_PATIENCE_SECONDS) as response:  # noqa: S310 - a server of ours
            return response.status == 200
    except (OSError, urllib.error.HTTPError, http.client.HTTPException):
        return False
