"""`agl-stream tail TOPIC`: decoded records of a topic, one a line."""

from __future__ import annotations

import base64
import difflib
import sys
from collections.abc import Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from agl_stream import connections
from agl_stream.cli.output import emit_json, output_option
from agl_stream.cli.shared import load_settings

if TYPE_CHECKING:
    from agl_stream.cli.log_reader import LogReader, RawRecord
    from agl_stream.schemas.codec import Codec

_SHOWN_BYTES = 64


def start_offsets(where: str, bounds: Mapping[int, tuple[int, int]], partitions: list[int] | None) -> dict[int, int]:
    """Partition -> first offset to print, kept within what the log still holds.

    `where`: beginning, end, an offset, or -N for the last N records of each partition.
    """
    start: dict[int, int] = {}
    for partition, (low, high) in bounds.items():
        if partitions is not None and partition not in partitions:
            continue
        if where == "beginning":
            start[partition] = low
        elif where == "end":
            start[partition] = high
        else:
            offset = int(where)
            start[partition] = min(max(low, offset if offset >= 0 else high + offset), high)
    return start


class _Where(click.ParamType):
    name = "beginning|end|OFFSET|-N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> str:
        if value not in ("beginning", "end"):
            try:
                int(value)
            except ValueError:
                self.fail(f"{value!r} is neither beginning, end, an offset nor -N (the last N)", param, ctx)
        return value


def _topic(ctx: click.Context, param: click.Parameter, value: str) -> str:
    from agl_stream.schemas.topics import TOPICS

    name = value if value in TOPICS else value.partition(".")[2]
    if name not in TOPICS:
        near = difflib.get_close_matches(value, TOPICS, n=1)
        hint = f"did you mean {near[0]}?" if near else ""
        raise click.BadParameter(f"no topic {value!r}; {hint or 'known are ' + ', '.join(TOPICS)}", ctx, param)
    return name


@click.command()
@click.argument("topic", callback=_topic)
@click.option(
    "--from",
    "where",
    type=_Where(),
    default="beginning",
    show_default=True,
    help="Where to begin, in each partition; -N is the last N records.",
)
@click.option("--limit", type=click.IntRange(min=1), help="Stop after this many records.")
@click.option(
    "--follow/--no-follow",
    default=None,
    help="Go on with records as they come. Default: only with --from end.",
)
@click.option("--partition", "partitions", type=int, multiple=True, help="Only this partition (repeatable).")
@output_option
def command(
    topic: str, where: str, limit: int | None, follow: bool | None, partitions: tuple[int, ...], output: str
) -> None:
    """Print decoded records of TOPIC (a name without namespace, for example spans or triplets).

    Stops at the topic's present end unless told to --follow. Nothing is committed and no group is joined. A
    record that does not decode is printed as such. With --output json each line is one object: topic,
    partition, offset, timestamp_ms, key and event (or error); token ids are lists of integers there.
    """
    from agl_stream.cli.log_reader import LogReader
    from agl_stream.schemas.codec import Codec

    settings = load_settings()
    follow = where == "end" if follow is None else follow
    # Printing must never register anything.
    codec = Codec(connections.registry_client(settings, register=False))
    with LogReader(settings) as reader:
        chosen = list(partitions) or None
        unknown = set(chosen or ()) - set(reader.partitions(topic))
        if unknown:
            raise click.BadParameter(
                f"topic {topic} has partitions 0 to {len(reader.partitions(topic)) - 1}", param_hint="--partition"
            )
        start = start_offsets(where, reader.bounds(topic), chosen)
        for record in islice(_records(reader, topic, start, follow), limit):
            if output == "json":
                emit_json(_as_object(record, codec))
            else:
                click.echo(_as_line(record, codec))
            if follow:
                sys.stdout.flush()


def _records(reader: LogReader, topic: str, start: Mapping[int, int], follow: bool) -> Iterator[RawRecord]:
    if not follow:
        yield from reader.read_to_end(topic, start=start, partitions=list(start))
        return
    reader.follow({topic: start})
    while True:
        yield from reader.poll(0.5)


def _as_object(record: RawRecord, codec: Codec) -> dict[str, Any]:
    from agl_stream.cli.render import as_json, key_text
    from agl_stream.errors import DecodeError

    shown: dict[str, Any] = {
        "topic": record.topic,
        "partition": record.partition,
        "offset": record.offset,
        "timestamp_ms": record.timestamp_ms,
        "key": key_text(record.key),
    }
    if record.value is None:
        return {**shown, "event": None}
    try:
        event_type, event = codec.decode(record.value, record.headers)
    except DecodeError as error:
        return {
            **shown,
            "error": {"reason_code": error.reason_code, "detail": str(error)},
            "value_length": len(record.value),
            "value_base64": base64.b64encode(record.value[:_SHOWN_BYTES]).decode(),
        }
    return {**shown, "event_type": event_type, "event": as_json(event)}


def _as_line(record: RawRecord, codec: Codec) -> str:
    from agl_stream.cli.render import clock_time, key_text, one_line
    from agl_stream.errors import DecodeError

    place = f"{record.partition}:{record.offset:<6} {clock_time(record.timestamp_ms * 1000)}"
    if record.value is None:
        return f"{place} {key_text(record.key)} (deleted)"
    try:
        event_type, event = codec.decode(record.value, record.headers)
    except DecodeError as error:
        return f"{place} !! {error.reason_code}: {error} ({len(record.value)} bytes, key {key_text(record.key)})"
    return f"{place} {one_line(event_type, event)}"
