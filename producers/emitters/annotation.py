"""Annotations: facts about the rollout that an agent or a grader wants kept."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from agl_stream.producers import semconv
from agl_stream.producers.attributes import flatten
from agl_stream.producers.emitters.emit import emit, point
from agl_stream.schemas.events import Event


def emit_annotation(annotation: Mapping[str, Any], *, propagate: bool = True) -> Event:
    """Emit an annotation span whose attributes are ``annotation``, flattened to dotted keys.

    Raises TypeError for values that are neither str, bool, int, float nor containers of these.
    """
    return emit(point(semconv.SPAN_ANNOTATION, "annotation", flatten(annotation), None), propagate=propagate)
