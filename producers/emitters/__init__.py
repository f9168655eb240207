"""What an agent says of itself: rewards, annotations, messages, objects, exceptions, operations.

Each call writes one span of the active rollout and returns it as a dict keyed as in span_recorded.avsc. Outside a
rollout, or with ``propagate=False``, the span is returned without being written (and without ids), so that agent
code runs unchanged in a notebook or a unit test.
"""

from agl_stream.producers.emitters.annotation import emit_annotation
from agl_stream.producers.emitters.exception import emit_exception
from agl_stream.producers.emitters.message import emit_message
from agl_stream.producers.emitters.object import emit_object
from agl_stream.producers.emitters.operation import operation
from agl_stream.producers.emitters.reward import emit_reward

__all__ = ["emit_annotation", "emit_exception", "emit_message", "emit_object", "emit_reward", "operation"]
