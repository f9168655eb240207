"""Where the two registries differ, declared once; docs/registry.md tells the same in words."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Behaviour:
    """What a case may ask of a registry where the two are not alike."""

    default_compatibility: str
    """Level of subjects that have none of their own."""
    own_level_is_told_apart: bool
    """Whether a subject without a level of its own is answered 404/40408 instead of the global level."""
    spacing_is_ignored: bool
    """Whether a schema written with other spacing has the same id."""
    tells_uses: bool
    """Whether the subjects and versions of a schema id are told."""
    has_modes: bool
    """Whether registration can be forbidden, globally and for a subject."""
    version_that_is_no_number: tuple[int, int]
    """Status and code."""
    hard_deletion_of_a_live_version: tuple[int, int]
    """Status and code."""
    unknown_level_status: int
    """Status of the refusal of a compatibility level that nobody knows."""
    fails_on_unknown_types: bool
    """Whether a schema type that nobody knows is the server's fault (500) instead of the asker's."""


DECLARED = {
    "embedded": Behaviour(
        default_compatibility="FULL_TRANSITIVE",
        own_level_is_told_apart=True,
        spacing_is_ignored=True,
        tells_uses=True,
        has_modes=True,
        version_that_is_no_number=(422, 42202),
        hard_deletion_of_a_live_version=(404, 40407),
        unknown_level_status=422,
        fails_on_unknown_types=False,
    ),
    "apicurio": Behaviour(
        default_compatibility="NONE",
        own_level_is_told_apart=False,
        spacing_is_ignored=False,
        tells_uses=False,
        has_modes=False,
        version_that_is_no_number=(404, 40402),
        hard_deletion_of_a_live_version=(409, 40407),
        unknown_level_status=400,
        fails_on_unknown_types=True,
    ),
}
