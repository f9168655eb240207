"""Every statement of the Cassandra store, written once. All writes are whole rows with a timestamp of their own;
none deletes, asks before it writes, or uses a lightweight transaction."""

# ruff: noqa: S608 - statements are put together from names written here, values are always parameters

from __future__ import annotations

# writing


def _insert(table: str, columns: str) -> str:
    names = columns.split()
    values = ", ".join("?" * len(names))
    return f"INSERT INTO {table} ({', '.join(names)}) VALUES ({values}) USING TIMESTAMP ?"


PUT_ROLLOUT = _insert("rollouts", "rollout_id version event")
LIST_ROLLOUT = _insert("rollouts_by_run", "run_id bucket rollout_id head")
PUT_BUCKET = _insert("buckets", "listing scope bucket")
PUT_SPAN = _insert("spans", "rollout_id attempt_id bucket sequence_id span_id source_partition source_offset event")
PUT_SPAN_BUCKET = _insert("span_buckets", "rollout_id attempt_id bucket")
PUT_ACTIVITY = _insert("activity", "attempt_id last_span_at_us")
PUT_TRIPLETS = _insert("triplets", "rollout_id event")
LIST_TRIPLETS = _insert("triplet_rollouts", "shard rollout_id")
PUT_RESOURCES = _insert("resources", "resources_id bucket version head event")
PUT_WORKER = _insert("workers", "shard worker_id event")
PUT_BATCH = _insert("batches", "learner_id bucket step head event")
PUT_REJECT = _insert("rejects", "source bucket reject_key head event")
PUT_APPLIED = _insert("applied", "part topic partition base next_offset")

WRITES = {name: text for name, text in list(globals().items()) if isinstance(text, str) and text.startswith("INSERT")}

# reading

GET_ROLLOUT = "SELECT event FROM rollouts WHERE rollout_id = ?"
ROLLOUT_HEADS = "SELECT head FROM rollouts_by_run WHERE run_id = ? AND bucket = ?"
BUCKETS = "SELECT scope, bucket FROM buckets WHERE listing = ?"
BUCKETS_OF = "SELECT scope, bucket FROM buckets WHERE listing = ? AND scope = ?"
SPAN_BUCKETS = "SELECT attempt_id, bucket FROM span_buckets WHERE rollout_id = ?"
SPAN_BUCKETS_OF = "SELECT attempt_id, bucket FROM span_buckets WHERE rollout_id = ? AND attempt_id = ?"
ALL_SPAN_BUCKETS = "SELECT rollout_id, attempt_id, bucket FROM span_buckets"
GET_SPANS = (
    "SELECT span_id, source_partition, source_offset, event FROM spans "
    "WHERE rollout_id = ? AND attempt_id = ? AND bucket = ?"
)
SPAN_KEYS = "SELECT span_id FROM spans WHERE rollout_id = ? AND attempt_id = ? AND bucket = ?"
GET_ACTIVITY = "SELECT attempt_id, last_span_at_us FROM activity WHERE attempt_id = ?"
GET_TRIPLETS = "SELECT event FROM triplets WHERE rollout_id = ?"
COUNT_TRIPLETS = "SELECT count(*) FROM triplet_rollouts WHERE shard = ?"
GET_RESOURCES = "SELECT event FROM resources WHERE resources_id = ? AND bucket = ? AND version = ?"
LATEST_RESOURCES = "SELECT event FROM resources WHERE resources_id = ? AND bucket = ? LIMIT 1"
RESOURCES_HEADS = "SELECT head FROM resources WHERE resources_id = ? AND bucket = ?"
GET_WORKERS = "SELECT event FROM workers WHERE shard = ?"
GET_BATCHES = "SELECT event FROM batches WHERE learner_id = ? AND bucket = ?"
BATCH_HEADS = "SELECT head FROM batches WHERE learner_id = ? AND bucket = ?"
REJECT_HEADS = "SELECT head FROM rejects WHERE source = ? AND bucket = ?"
GET_REJECT = "SELECT event FROM rejects WHERE source = ? AND bucket = ? AND reject_key = ?"
ALL_APPLIED = "SELECT topic, partition, base, next_offset FROM applied WHERE part = ?"
GET_APPLIED = "SELECT base, next_offset FROM applied WHERE part = ? AND topic = ? AND partition = ?"
