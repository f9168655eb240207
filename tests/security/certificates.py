"""Certificates of a test: an authority, a server on loopback, a client, and a client of an authority nobody knows."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import trustme
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)


@dataclass(frozen=True)
class Certificates:
    """PEM files. ``server``: key and chain in one, as Java servers read them."""

    authority: Path
    server: Path
    client: Path
    client_key: Path
    stranger: Path
    stranger_key: Path
    other_authority: Path


def make_certificates(folder: Path) -> Certificates:
    """New ones for 127.0.0.1 to 127.0.0.3 and localhost, in `folder`."""
    ours, theirs = trustme.CA(), trustme.CA()
    made = Certificates(
        authority=folder / "authority.pem",
        server=folder / "server.pem",
        client=folder / "client.pem",
        client_key=folder / "client.key",
        stranger=folder / "stranger.pem",
        stranger_key=folder / "stranger.key",
        other_authority=folder / "other-authority.pem",
    )
    ours.cert_pem.write_to_path(made.authority)
    theirs.cert_pem.write_to_path(made.other_authority)
    served = ours.issue_cert("127.0.0.1", "127.0.0.2", "127.0.0.3", "localhost")
    made.server.write_bytes(_key(served) + _chain(served))
    for authority, certificate, key in (
        (ours, made.client, made.client_key),
        (theirs, made.stranger, made.stranger_key),
    ):
        issued = authority.issue_cert("client@agl-stream.example")
        key.write_bytes(_key(issued))
        certificate.write_bytes(_chain(issued))
    return made


def _key(issued: trustme.LeafCert) -> bytes:
    """In PKCS 8, the only form that Java reads."""
    key = load_pem_private_key(issued.private_key_pem.bytes(), None)
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _chain(issued: trustme.LeafCert) -> bytes:
    return b"".join(blob.bytes() for blob in issued.cert_chain_pems)
