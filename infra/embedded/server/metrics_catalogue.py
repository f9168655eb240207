"""Every metric of the broker's page: its name, kind, and a sentence on what it means and when to worry."""

from __future__ import annotations

from typing import NamedTuple

PREFIX = "agl_broker_"


class Metric(NamedTuple):
    """`name` without the prefix; `kind` as Prometheus has it."""

    name: str
    kind: str
    help: str


SERVER = (
    Metric("connections", "gauge", "Connections that are open now."),
    Metric("connections_accepted_total", "counter", "Connections that came, those that were turned away included."),
    Metric(
        "connections_turned_away_total",
        "counter",
        "Connections closed on arrival, by the setting they were over. Rising: raise it, or find who opens so many.",
    ),
    Metric(
        "connections_refused_total",
        "counter",
        "Connections closed for what they sent or did not send or take: malformed frames, unknown APIs, frames and "
        "answers left half, failed handlers. The log has a line for each.",
    ),
    Metric("requests_total", "counter", "Requests answered, by API."),
    Metric(
        "request_seconds",
        "histogram",
        "From the whole request to its encoded answer, by API. The wait of a fetch or a join is part of it.",
    ),
    Metric("request_bytes_total", "counter", "Bytes of requests, by API: of produce, what came in."),
    Metric("response_bytes_total", "counter", "Bytes of answers, by API: of fetch, what was read."),
    Metric("throttled_requests_total", "counter", "Answers that told a client to wait for its quota, by API."),
    Metric("throttled_seconds_total", "counter", "How long those clients were told to wait, by API."),
    Metric(
        "queued_request_bytes", "gauge", "Requests read and not answered yet; the limit is queued.max.request.bytes."
    ),
    Metric(
        "parked_connections", "gauge", "Connections not read from until other requests are answered. Above 0: overload."
    ),
    Metric("stalled_connections", "gauge", "Connections whose client has not taken its whole answer yet."),
    Metric("topics", "gauge", "Topics that exist."),
    Metric("groups", "gauge", "Consumer groups with members, and those with offsets only as Empty, by state."),
    Metric("transactions", "gauge", "Transactional ids, by state. Ongoing for long: consumers of committed data wait."),
)

STORAGE_SIZES = {
    "partitions": "Partitions of all topics.",
    "segments": "Segment files of all partitions; each that was read or written is open.",
    "log_bytes": "Bytes of all logs on disk.",
    "unflushed_bytes": "Bytes that a power cut could take now; under every-write only what is not acknowledged yet.",
}
"""Gauges, by field of StorageSize; the metric is named storage_FIELD."""

STORAGE_COUNTERS = {
    "appended_batches": "Batches added to logs: data and transaction markers.",
    "appended_bytes": "Bytes of those batches.",
    "repeated_batches": "Batches of idempotent producers that were there already and were not stored again.",
    "refused_appends": "Appends the file system refused. Rising: the disk is full or broken.",
    "journal_entries": "Entries added to the journals of offsets and transactions.",
    "fsyncs": "Files forced to disk, logs and journals together.",
    "folder_fsyncs": "Folders forced to disk, so that names in them survive a power cut.",
    "failed_fsyncs": "Refused fsyncs. Any: the disk is full or broken, and producers under every-write wait.",
    "flush_waits": "Requests that waited for the disk; over fsyncs, how well group commit works.",
    "rolled_segments": "Segments closed because of size or age.",
    "deleted_segments": "Segments removed by retention and DeleteRecords.",
    "compaction_passes": "Passes of the log cleaner over a partition.",
    "compacted_bytes_read": "Bytes the log cleaner has read.",
    "compacted_bytes_written": "Bytes the log cleaner has kept.",
    "failed_compactions": "Passes that ended without effect, for damage or a full disk. They are tried again.",
    "cut_bytes": "Bytes of torn ends, cut at a start after a kill or a power cut.",
    "damaged_batches": "Places where a batch failed its checksum. Any: see the log, which names file and offsets.",
    "rebuilt_indexes": "Indexes that were missing, stale or torn and were made again from the data.",
}
"""Counters of this process, by field of StorageCounters; the metric is named storage_FIELD_total."""


def catalogue() -> list[Metric]:
    """All metrics, with their full names."""
    storage = [Metric(f"storage_{name}", "gauge", text) for name, text in STORAGE_SIZES.items()]
    storage += [Metric(f"storage_{name}_total", "counter", text) for name, text in STORAGE_COUNTERS.items()]
    return [metric._replace(name=PREFIX + metric.name) for metric in (*SERVER, *storage)]
