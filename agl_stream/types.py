"""The types an agent and its author see, with the reference's field names.

Events on the log are plain dicts (``agl_stream.schemas.events``); these pydantic models are for people: they are
what an agent receives (task resources, the attempted rollout) and what a query answers. Times are float seconds
since the epoch, as in the reference; the log keeps microseconds.
"""

from __future__ import annotations

import json
import logging
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    PrivateAttr,
    SerializerFunctionWrapHandler,
    TypeAdapter,
    model_serializer,
    model_validator,
)

from agl_stream.errors import UsageError

logger = logging.getLogger(__name__)

RolloutStatus = Literal["queuing", "preparing", "running", "failed", "succeeded", "cancelled", "requeuing"]
AttemptStatus = Literal["preparing", "running", "failed", "succeeded", "unresponsive", "timeout"]
RolloutMode = Literal["train", "val", "test"]

TERMINAL_ROLLOUT_STATUSES = frozenset({"succeeded", "failed", "cancelled"})


class RolloutConfig(BaseModel):
    """Limits and retry rules of one rollout. The defaults mean: no limits, no retries."""

    timeout_seconds: float | None = Field(default=None, gt=0)
    unresponsive_seconds: float | None = Field(default=None, gt=0)
    max_attempts: int = Field(default=1, ge=1)
    retry_condition: list[AttemptStatus] = []
    backoff_seconds: float = Field(default=0.0, ge=0)


class Attempt(BaseModel):
    """One try at a rollout. ``sequence_id`` is the attempt number, from 1."""

    rollout_id: str
    attempt_id: str
    sequence_id: int
    start_time: float
    end_time: float | None = None
    status: AttemptStatus = "preparing"
    worker_id: str | None = None
    last_heartbeat_time: float | None = None
    metadata: dict[str, Any] | None = None


class Rollout(BaseModel):
    """A task and where it stands. ``start_time`` is when it was requested."""

    rollout_id: str
    input: Any
    start_time: float
    end_time: float | None = None
    mode: RolloutMode | None = None
    resources_id: str | None = None
    resources_version: int | None = None
    status: RolloutStatus = "queuing"
    config: RolloutConfig = Field(default_factory=RolloutConfig)
    metadata: dict[str, Any] | None = None
    run_id: str | None = None
    group_id: str | None = None
    group_size: int | None = None


class AttemptedRollout(Rollout):
    """A rollout together with the attempt that is being made."""

    attempt: Attempt

    @model_validator(mode="after")
    def _same_rollout(self) -> Self:
        if self.attempt.rollout_id != self.rollout_id:
            raise ValueError(f"attempt of {self.attempt.rollout_id} given for rollout {self.rollout_id}")
        return self


class EnqueueRolloutRequest(BaseModel):
    """A rollout that somebody wants."""

    input: Any
    mode: RolloutMode | None = None
    resources_id: str | None = None
    config: RolloutConfig | None = None
    metadata: dict[str, Any] | None = None


class Resource(BaseModel):
    """Something a rollout runs with. Each kind has a ``resource_type`` that tells it apart in JSON."""


class LLM(Resource):
    """A model behind an OpenAI-compatible endpoint."""

    resource_type: Literal["llm"] = "llm"
    endpoint: str
    model: str
    api_key: str | None = Field(default=None, repr=False)
    sampling_parameters: dict[str, Any] = {}
    _key_is_lent: bool = PrivateAttr(default=False)

    @property
    def base_url(self) -> str:
        """``get_base_url()``: what an agent that was given an ``llm`` hands to its OpenAI client."""
        return self.get_base_url()

    def get_base_url(self, rollout_id: str | None = None, attempt_id: str | None = None) -> str:
        """Base URL for an OpenAI client."""
        return self.endpoint

    def with_lent_key(self, api_key: str) -> Self:
        """A copy with a secret of this process as its key: the copy's JSON leaves the key out, so that it does not get
        onto the log when an agent records what it was given."""
        lent = self.model_copy(update={"api_key": api_key})
        lent._key_is_lent = True
        return lent

    @model_serializer(mode="wrap")
    def _without_lent_key(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        fields = serialize(self)
        if self._key_is_lent:
            fields.pop("api_key", None)
        return fields


class ProxyLLM(LLM):
    """A model behind a gateway that records each call for the rollout and attempt named in the path."""

    resource_type: Literal["proxy_llm"] = "proxy_llm"  # type: ignore[assignment]

    def __getattribute__(self, name: str) -> Any:
        # Calls through the bare endpoint are recorded for nobody, which is hardly ever what an agent wants.
        if name == "endpoint":
            logger.warning("ProxyLLM.endpoint read directly: use get_base_url(rollout_id, attempt_id)")
        return super().__getattribute__(name)

    def get_base_url(self, rollout_id: str | None = None, attempt_id: str | None = None) -> str:
        """Base URL under which the calls of this attempt are recorded; the plain endpoint when both ids are None.

        Raises ValueError when only one of the ids is given.
        """
        endpoint: str = self.__dict__["endpoint"]
        if rollout_id is None and attempt_id is None:
            return endpoint
        if rollout_id is None or attempt_id is None:
            raise ValueError("rollout_id and attempt_id go together: give both or neither")
        root = endpoint.rstrip("/")
        version = "/v1" if root.endswith("/v1") else ""
        return f"{root.removesuffix('/v1')}/rollout/{rollout_id}/attempt/{attempt_id}{version}"

    def with_attempted_rollout(self, rollout: AttemptedRollout) -> LLM:
        """A plain LLM whose address carries the ids of this attempt."""
        bound = LLM(
            endpoint=self.get_base_url(rollout.rollout_id, rollout.attempt.attempt_id),
            model=self.model,
            api_key=self.api_key,
            sampling_parameters=dict(self.sampling_parameters),
        )
        bound._key_is_lent = self._key_is_lent
        return bound


class PromptTemplate(Resource):
    """A prompt with holes. ``format`` fills them for f-string and (with jinja2 installed) jinja templates."""

    resource_type: Literal["prompt_template"] = "prompt_template"
    template: str
    engine: Literal["jinja", "f-string", "poml"] = "f-string"

    def format(self, **values: Any) -> str:
        """The filled text. Raises NotImplementedError for poml, which needs its own renderer."""
        if self.engine == "f-string":
            return self.template.format(**values)
        if self.engine == "jinja":
            from jinja2.sandbox import SandboxedEnvironment

            return SandboxedEnvironment().from_string(self.template).render(**values)
        raise NotImplementedError(
            f"PromptTemplate.format does not render {self.engine}; render .template with the {self.engine} package"
        )


ResourceUnion = Annotated[LLM | ProxyLLM | PromptTemplate, Field(discriminator="resource_type")]
NamedResources = dict[str, ResourceUnion]

_named_resources: TypeAdapter[NamedResources] = TypeAdapter(NamedResources)


def parse_resources(text: str) -> NamedResources:
    """The named resources of a ResourcesPublished event's JSON; an empty object gives an empty dict.

    Raises UsageError naming the resource that does not parse.
    """
    try:
        return _named_resources.validate_json(text or "{}")
    except ValueError as error:
        first = str(error).splitlines()[1:3]
        raise UsageError(f"resources cannot be read: {' '.join(line.strip() for line in first)}") from None


class ResourcesUpdate(BaseModel):
    """One version of a set of named resources."""

    resources_id: str
    create_time: float
    update_time: float
    version: int
    resources: NamedResources


class Triplet(BaseModel):
    """One model call as training data. A missing reward is None, never 0.0."""

    prompt: Any
    response: Any
    reward: float | None = None
    metadata: dict[str, Any] = {}


class TraceStatus(BaseModel):
    """OpenTelemetry status."""

    status_code: Literal["UNSET", "OK", "ERROR"] = "UNSET"
    description: str | None = None


class SpanContext(BaseModel):
    """Where a span stands in its trace."""

    trace_id: str
    span_id: str
    is_remote: bool = False
    trace_state: dict[str, str] = {}


class OtelResource(BaseModel):
    """What made a span, in OpenTelemetry's sense."""

    attributes: dict[str, Any] = {}
    schema_url: str = ""


class SpanCoreFields(BaseModel):
    """A span without identity: what an agent may return and the runner completes with ids."""

    name: str
    status: TraceStatus = Field(default_factory=lambda: TraceStatus(status_code="OK"))
    attributes: dict[str, Any] = {}
    start_time: float | None = None
    end_time: float | None = None


class Span(BaseModel):
    """One recorded step of an attempt. Further fields are kept."""

    model_config: ClassVar[ConfigDict] = ConfigDict(extra="allow")

    rollout_id: str
    attempt_id: str
    sequence_id: int
    trace_id: str
    span_id: str
    parent_id: str | None = None
    name: str
    status: TraceStatus = Field(default_factory=TraceStatus)
    attributes: dict[str, Any] = {}
    events: list[dict[str, Any]] = []
    links: list[dict[str, Any]] = []
    start_time: float | None = None
    end_time: float | None = None
    context: SpanContext | None = None
    parent: SpanContext | None = None
    resource: OtelResource = Field(default_factory=OtelResource)

    @classmethod
    def from_event(cls, event: dict[str, Any]) -> Span:
        """The span of a SpanRecorded event."""
        parent_id = event.get("parent_id")
        return cls(
            rollout_id=event["rollout_id"],
            attempt_id=event["attempt_id"],
            sequence_id=event["sequence_id"],
            trace_id=event["trace_id"],
            span_id=event["span_id"],
            parent_id=parent_id,
            name=event["name"],
            status=TraceStatus(
                status_code=event.get("status", "unset").upper(), description=event.get("status_description")
            ),
            attributes=json.loads(event.get("attributes") or "{}"),
            events=json.loads(event.get("events") or "[]"),
            links=json.loads(event.get("links") or "[]"),
            start_time=_seconds(event.get("started_at_us")),
            end_time=_seconds(event.get("ended_at_us")),
            context=SpanContext(trace_id=event["trace_id"], span_id=event["span_id"]),
            parent=SpanContext(trace_id=event["trace_id"], span_id=parent_id) if parent_id else None,
            resource=OtelResource.model_validate_json(event.get("resource") or "{}"),
        )


def _seconds(microseconds: int | None) -> float | None:
    return None if microseconds is None else microseconds / 1e6
