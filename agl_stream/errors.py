"""The errors of agl-stream: one small hierarchy, each with its exit code.

A message names the thing, the setting and the remedy, because it is what a person reads at the end of a
night: the command line prints it as one line and ends with :attr:`AglStreamError.exit_code`.
This module imports nothing of ours, so every room may use it.
"""

from __future__ import annotations


class AglStreamError(Exception):
    """Base of every error raised on purpose."""

    exit_code = 1


class UsageError(AglStreamError):
    """The caller asked for something that cannot be asked for."""

    exit_code = 2


class SettingError(UsageError):
    """A setting has a value that cannot be used."""


class EngineUnreachable(AglStreamError):
    """A broker, registry, store or gateway does not answer."""

    exit_code = 3


class AccessRefused(EngineUnreachable):
    """An engine answers and does not let this client in: wrong credentials, or a certificate that is not trusted."""


class PortInUse(AglStreamError):
    """A port that was asked for belongs to another process."""


class FolderNotWritable(AglStreamError):
    """A data folder cannot be written, or another process holds it."""


class DecodeError(AglStreamError):
    """A record's value is not an event. ``reason_code`` is its code in the catalogue of reasons."""

    reason_code = "undecodable"


class NotOurFraming(DecodeError):
    """The value does not start with the framing of a schema id."""

    reason_code = "not_framed"


class UnknownSchema(DecodeError):
    """The registry does not know the schema id."""

    reason_code = "unknown_schema"


class BodyUndecodable(DecodeError):
    """The schema is known and the bytes do not follow it."""

    reason_code = "undecodable"


class EncodeError(AglStreamError):
    """An event does not fit its schema."""


class SchemaIncompatible(AglStreamError):
    """A schema version breaks the compatibility promise."""


class RegistryRefused(AglStreamError):
    """The registry answered, and said no."""


class DeliveryFailed(AglStreamError):
    """At least one event was not acknowledged by the log."""


class BufferFull(AglStreamError):
    """The producer's buffer stayed full for the whole delivery time."""


class RecordTooLarge(AglStreamError):
    """An event is larger than the log takes."""


class BlobCorrupt(AglStreamError):
    """A claim-checked payload is missing or does not match its hash."""


class TooManyRejects(AglStreamError):
    """A consumer stopped because rejects flooded it."""


class NotFound(AglStreamError):
    """What was asked for does not exist."""
