"""The catalogue of reasons: why something was rejected, dropped, failed or cancelled.

One list for rejects, attempts, rollouts and batches, so that a count by reason means the same everywhere.
``infrastructure`` marks reasons that say nothing about the policy: such an attempt is never trained on and
never counted as reward zero.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Reason:
    """A code, what it means and what to do about it."""

    code: str
    meaning: str
    remedy: str
    infrastructure: bool = False


REASONS: dict[str, Reason] = {
    reason.code: reason
    for reason in (
        # records
        Reason(
            "not_framed",
            "The value does not begin with a schema id.",
            "Write with a Confluent-compatible Avro serializer, or with agl_stream's producers.",
        ),
        Reason(
            "unknown_schema",
            "The registry does not know the schema id.",
            "Register the schema (agl-stream schemas apply), or point the writer at the same registry.",
        ),
        Reason(
            "undecodable",
            "The bytes do not follow their schema.",
            "Compare the writer's schema with schemas/avsc; the record's payload is kept in the reject.",
        ),
        Reason(
            "wrong_event",
            "A valid event of another type than the topic carries.",
            "Send each event type to its own topic (agl-stream topics plan).",
        ),
        Reason(
            "bad_json",
            "A field that holds JSON does not parse, or is nested too deep.",
            "Correct the writer; input, metadata and payload are JSON text.",
        ),
        Reason(
            "record_too_large",
            "A record is above the largest size.",
            "Use the claim check (inline_limit_bytes) or shorter rollouts, or raise max_record_bytes and the broker's.",
        ),
        Reason(
            "unencodable",
            "An event does not fit the schema of its topic.",
            "Look at the field named in the detail; the writer of the record it was made from set it.",
        ),
        Reason(
            "blob_missing",
            "A claim-checked payload is missing or does not match its hash.",
            "Set AGL_STREAM_BLOB_ROOT to the store the writer used.",
        ),
        # lifecycle
        Reason(
            "unknown_rollout",
            "An event speaks of a rollout nobody requested.",
            "Request the rollout first; check the id.",
        ),
        Reason(
            "unknown_attempt",
            "An event speaks of an attempt that was never dispatched.",
            "Check the id; attempt ids follow from rollout id and number.",
        ),
        Reason(
            "unknown_resources",
            "The resources id or version asked for was never published.",
            "Publish the resources first, or leave the id out to get the latest.",
        ),
        Reason(
            "bad_config",
            "A limit of a rollout, or a field that an update sets, is unknown, out of range or of another type.",
            "Correct the field named in the detail; schemas/avsc says what each may be.",
        ),
        Reason(
            "impossible_transition",
            "An event asks for a change the state machine has no place for.",
            "See docs/architecture.md, lifecycle.",
        ),
        Reason(
            "late_event",
            "An event arrived after its rollout had been closed and forgotten.",
            "Raise closed_grace_seconds if such events matter.",
        ),
        Reason("attempt_fenced", "The attempt was replaced by a later one.", "None needed: the later one counts."),
        Reason("cancelled", "Somebody cancelled the rollout.", "None needed."),
        Reason(
            "agent_error",
            "The agent raised an exception.",
            "Read the attempt's detail and exception span (agl-stream show).",
        ),
        Reason(
            "bad_result",
            "The agent returned something that is neither a number, spans nor nothing.",
            "Return a number, None or spans.",
        ),
        Reason(
            "attempt_timeout",
            "The attempt ran longer than its timeout_seconds.",
            "Raise the limit or look for a hung call.",
        ),
        Reason(
            "attempt_unresponsive",
            "No span and no heartbeat within unresponsive_seconds.",
            "Look at the runner's log; the attempt is retried when its config says so.",
            infrastructure=True,
        ),
        Reason(
            "worker_lost",
            "The worker that held the attempt was restarted or died.",
            "None needed when retries are allowed (retry_condition has unresponsive).",
            infrastructure=True,
        ),
        Reason(
            "runner_stopping",
            "The runner was stopped and the attempt did not end within its drain time.",
            "Raise drain_seconds, or allow a retry.",
            infrastructure=True,
        ),
        Reason("claim_lease", "A dispatched attempt was offered again.", "None needed.", infrastructure=True),
        Reason(
            "upstream_error",
            "The inference server could not be reached or failed.",
            "Look at the gateway's log and AGL_STREAM_UPSTREAM_URL.",
            infrastructure=True,
        ),
        Reason(
            "spans_lost",
            "Spans of the attempt could not be put on the log.",
            "Look at the broker and AGL_STREAM_DELIVERY_TIMEOUT_SECONDS; allow a retry.",
            infrastructure=True,
        ),
        # joining
        Reason("no_model_calls", "The attempt made no recorded model call.", "Send model calls through the gateway."),
        Reason(
            "no_reward",
            "The rollout ended without any reward.",
            "Return a number from the agent, or call emit_reward.",
        ),
        Reason(
            "ids_missing",
            "A model call carries no token ids.",
            "Use an inference server that answers return_token_ids.",
        ),
        Reason("bad_tokens", "Token ids or logprobs are malformed.", "Look at the span named in the detail."),
        Reason("nan_logprob", "A logprob is not a finite number.", "Look at the inference server."),
        Reason("bad_reward", "A reward is not a finite number.", "Look at the agent's reward."),
        Reason("late_span", "A span arrived after its attempt was joined.", "None needed: a revision was made."),
        # training
        Reason("over_long", "A row is longer than the trainer takes.", "Raise the trainer's length limits."),
        Reason("late_triplets", "The group had been trained before the triplets arrived.", "None needed."),
        Reason(
            "group_incomplete",
            "The group closed without enough usable siblings.",
            "Raise the group deadline, or lower the minimum group size.",
        ),
        Reason(
            "logprobs_missing",
            "An older version made the response and its logprobs are not known, so it cannot be weighted.",
            "Use an inference server that answers logprobs.",
        ),
        Reason("stale", "The version that made it is older than the staleness bound.", "Raise max_staleness."),
    )
}


def is_infrastructure(code: str | None) -> bool:
    """Whether a reason is a fault of machinery rather than of the policy. Unknown codes are not."""
    reason = REASONS.get(code or "")
    return reason is not None and reason.infrastructure
