-- What the materialisers know, for readers. Every row is an event's latest or only form; all of it can be rebuilt
-- from the log. Ordinary rowid tables where rows are large: WITHOUT ROWID keeps whole rows in the key's b-tree,
-- which splits badly at a kilobyte a row. JSON columns hold what SQL never looks into.

CREATE TABLE meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;

-- Next offset to apply; written in the transaction that applies what lies before it.
CREATE TABLE applied (
    topic TEXT NOT NULL, partition INTEGER NOT NULL, next_offset INTEGER NOT NULL,
    PRIMARY KEY (topic, partition)
) WITHOUT ROWID;

-- RolloutStateChanged, greatest version.
CREATE TABLE rollouts (
    rollout_id TEXT PRIMARY KEY, version INTEGER NOT NULL, status TEXT NOT NULL, reason_code TEXT, mode TEXT NOT NULL,
    resources_id TEXT, resources_version INTEGER, run_id TEXT, group_id TEXT,
    requested_at_us INTEGER NOT NULL, ended_at_us INTEGER, attempt_id TEXT, attempt_number INTEGER, worker_id TEXT,
    event TEXT NOT NULL
);
CREATE INDEX rollouts_by_status ON rollouts (status, requested_at_us);
CREATE INDEX rollouts_by_run ON rollouts (run_id, requested_at_us);
CREATE INDEX rollouts_by_time ON rollouts (requested_at_us);
CREATE INDEX rollouts_by_group ON rollouts (group_id) WHERE group_id IS NOT NULL;

-- SpanRecorded, first one of its key.
CREATE TABLE spans (
    rollout_id TEXT NOT NULL, attempt_id TEXT NOT NULL, span_id TEXT NOT NULL, sequence_id INTEGER NOT NULL,
    source_partition INTEGER NOT NULL, source_offset INTEGER NOT NULL,
    event_id TEXT NOT NULL, occurred_at_us INTEGER NOT NULL,
    producer_name TEXT NOT NULL, producer_instance TEXT NOT NULL, producer_version TEXT NOT NULL,
    trace_id TEXT NOT NULL, parent_id TEXT, name TEXT NOT NULL, kind TEXT NOT NULL,
    status TEXT NOT NULL, status_description TEXT, started_at_us INTEGER NOT NULL, ended_at_us INTEGER,
    model TEXT, resources_id TEXT, resources_version INTEGER,
    prompt_token_ids BLOB, response_token_ids BLOB, response_logprobs BLOB, finish_reason TEXT, ids_missing TEXT,
    reward REAL, request TEXT, response TEXT, payload_ref TEXT,
    attributes TEXT NOT NULL, events TEXT NOT NULL, links TEXT NOT NULL, resource TEXT NOT NULL
);
CREATE UNIQUE INDEX spans_by_key ON spans (rollout_id, attempt_id, span_id);

-- When an attempt last recorded a span.
CREATE TABLE activity (attempt_id TEXT PRIMARY KEY, last_span_at_us INTEGER NOT NULL) WITHOUT ROWID;

-- TripletsJoined, greatest (revision, spans_total); its model calls are rows of their own.
CREATE TABLE triplets (
    rollout_id TEXT PRIMARY KEY, revision INTEGER NOT NULL, spans_total INTEGER NOT NULL, status TEXT NOT NULL,
    reason_code TEXT, mode TEXT NOT NULL, run_id TEXT, group_id TEXT, reward REAL, content_hash TEXT NOT NULL,
    occurred_at_us INTEGER NOT NULL, event TEXT NOT NULL
);
CREATE INDEX triplets_by_group ON triplets (group_id) WHERE group_id IS NOT NULL;
CREATE TABLE triplet_calls (
    rollout_id TEXT NOT NULL, position INTEGER NOT NULL, span_id TEXT NOT NULL, sequence_id INTEGER NOT NULL,
    prompt_token_ids BLOB NOT NULL, response_token_ids BLOB NOT NULL, response_logprobs BLOB, reward REAL,
    resources_version INTEGER, finish_reason TEXT, metadata TEXT NOT NULL
);
CREATE UNIQUE INDEX triplet_calls_by_key ON triplet_calls (rollout_id, position);

-- ResourcesPublished; a version never changes once published.
CREATE TABLE resources (
    resources_id TEXT NOT NULL, version INTEGER NOT NULL, occurred_at_us INTEGER NOT NULL, run_id TEXT, step INTEGER,
    event TEXT NOT NULL, PRIMARY KEY (resources_id, version)
);
CREATE INDEX resources_by_time ON resources (occurred_at_us);

-- WorkerHeartbeat, latest.
CREATE TABLE workers (
    worker_id TEXT PRIMARY KEY, occurred_at_us INTEGER NOT NULL, role TEXT NOT NULL, status TEXT NOT NULL,
    event TEXT NOT NULL
);

-- BatchTrained by step, and what it says of each rollout.
CREATE TABLE batches (
    learner_id TEXT NOT NULL, step INTEGER NOT NULL, run_id TEXT, ended_at_us INTEGER NOT NULL,
    manifest_hash TEXT NOT NULL, event TEXT NOT NULL, PRIMARY KEY (learner_id, step)
);
CREATE TABLE settlements (
    rollout_id TEXT NOT NULL, learner_id TEXT NOT NULL, step INTEGER NOT NULL, attempt_id TEXT NOT NULL,
    run_id TEXT, outcome TEXT NOT NULL, reason_code TEXT,
    PRIMARY KEY (rollout_id, learner_id, step)
) WITHOUT ROWID;
CREATE INDEX settlements_by_step ON settlements (learner_id, step);

-- RecordRejected, by source position and reason.
CREATE TABLE rejects (
    reject_key TEXT PRIMARY KEY, source_topic TEXT NOT NULL, source_partition INTEGER NOT NULL,
    source_offset INTEGER NOT NULL, source_key BLOB, reason_code TEXT NOT NULL, detail TEXT NOT NULL,
    rollout_id TEXT, attempt_id TEXT, rejected_by TEXT NOT NULL, event_id TEXT NOT NULL,
    occurred_at_us INTEGER NOT NULL, payload BLOB, payload_length INTEGER NOT NULL
);
CREATE INDEX rejects_by_reason ON rejects (reason_code);
CREATE INDEX rejects_by_time ON rejects (occurred_at_us);
