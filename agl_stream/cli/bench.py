"""`agl-stream bench`: how quick the whole system is on this machine."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click

from agl_stream.cli.output import emit_json, output_option, table
from agl_stream.cli.shared import load_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

    from agl_stream.settings import Settings

_running_option = click.option(
    "--running", is_flag=True, help="Measure the system of the settings instead of starting one in a temporary folder."
)


@click.group(short_help="Measure spans/s, rollouts/s, broker or state store on this machine.")
def command() -> None:
    """Measure the whole system on this machine and print figures, sizes, versions and the machine.

    Starts broker, registry and streams in a temporary folder (or takes the running ones), sends work through
    them and waits until the last of it can be read in the state store. On a shared machine: several runs, and
    compare only what was measured in one sitting.
    """


@command.command("spans")
@click.option("--spans", type=click.IntRange(min=50), default=100_000, show_default=True, help="How many to send.")
@click.option("--size", type=click.IntRange(700, 200_000), default=1100, show_default=True, help="Bytes of a span.")
@_running_option
@output_option
def spans_command(spans: int, size: int, running: bool, output: str) -> None:
    """Spans from a producer process through broker, span sink and joiner to readable triplets."""
    from agl_stream.bench import spans as bench

    with _progress("rollouts joined") as progress:
        result = bench.run(_settings(running), spans=spans, size=size, progress=progress)
    _print(result, output, f"{result['spans_per_second']:,.0f} spans/s")


@command.command("rollouts")
@click.option("--rollouts", type=click.IntRange(min=10), default=3000, show_default=True, help="How many to run.")
@click.option("--runners", type=click.IntRange(1, 64), default=4, show_default=True, help="Runner processes.")
@click.option("--slots", type=click.IntRange(1, 1024), default=8, show_default=True, help="Rollouts a runner holds.")
@_running_option
@output_option
def rollouts_command(rollouts: int, runners: int, slots: int, running: bool, output: str) -> None:
    """Rollouts whose agent returns a reward at once, from request to end in the state store."""
    from agl_stream.bench import rollouts as bench

    with _progress("rollouts ended") as progress:
        result = bench.run(_settings(running), rollouts=rollouts, runners=runners, slots=slots, progress=progress)
    _print(result, output, f"{result['rollouts_per_second']:,.0f} rollouts/s")


@command.command("store")
@click.option("--spans", type=click.IntRange(min=1000), default=100_000, show_default=True, help="How many to apply.")
@click.option("--size", type=click.IntRange(700, 200_000), default=1100, show_default=True, help="Bytes of a span.")
@click.option("--open", "open_rollouts", type=click.IntRange(1, 100_000), default=100, show_default=True,
              help="Rollouts that record spans at the same time.")  # fmt: skip
@output_option
def store_command(spans: int, size: int, open_rollouts: int, output: str) -> None:
    """Spans from a log in a temporary folder through one sink process into the state store of the settings.

    With AGL_STREAM_STORE_URL=cassandra://... into a keyspace of its own there, which is dropped afterwards.
    """
    from agl_stream.bench import store as bench

    with _progress("spans applied") as progress:
        result = bench.run(spans=spans, size=size, open_rollouts=open_rollouts, progress=progress)
    if output == "json":
        emit_json(result)
        return
    click.echo(
        f"{result['spans_per_second']:,.0f} spans/s into {result['store']}; the sink's CPU "
        f"{result['sink_cpu_us']:g} us a span"
    )
    for name in ("sizes", "machine", "versions"):
        click.echo(f"\n{name}")
        click.echo(table(["what", "figure"], result[name].items()))


@command.command("broker")
@click.option("--against", type=click.Choice(["kafka"]), help="Measure Apache Kafka side by side; needs Java 17.")
@click.option("--messages", type=click.IntRange(min=100), default=200_000, show_default=True, help="Records a round.")
@click.option("--size", "sizes", type=click.IntRange(1, 900_000), multiple=True, default=(1100,), show_default=True,
              help="Bytes of a record's value; may be given several times.")  # fmt: skip
@click.option("--partitions", type=click.IntRange(1, 1000), default=4, show_default=True, help="Of the topic.")
@click.option("--rounds", type=click.IntRange(min=1), default=5, show_default=True, help="After one to warm up.")
@output_option
def broker_command(
    against: str | None, messages: int, sizes: tuple[int, ...], partitions: int, rounds: int, output: str
) -> None:
    """The embedded broker alone: records in (acks=all, linger 5 ms), records out, and single round trips.

    With --against kafka both brokers take turns in each round. The ratio is the median of the rounds' ratios;
    CPU is the broker's own, for one record.
    """
    from agl_stream.bench import broker as bench

    with _progress("rounds") as progress:
        result = bench.run(
            against_kafka=against == "kafka",
            messages=messages,
            sizes=sizes,
            partitions=partitions,
            rounds=rounds,
            progress=progress,
        )
    if output == "json":
        emit_json(result)
        return
    for by_size in result["sizes"]:
        click.echo(f"records of {by_size['bytes']} bytes")
        click.echo(table(["broker", *bench.COLUMNS], bench.rows(by_size)))
        for verb, ratio in by_size.get("embedded_over_kafka", {}).items():
            click.echo(f"{verb}: {ratio:g} of Apache Kafka's rate")
        click.echo()
    click.echo(table(["broker", "round trip p50 ms", "p99 ms"], bench.latency_rows(result)))
    for name in ("workload", "machine", "versions"):
        click.echo(f"\n{name}")
        click.echo(table(["what", "figure"], result[name].items()))


def _settings(running: bool) -> Settings | None:
    return load_settings() if running else None


@contextmanager
def _progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """A bar on stderr when somebody watches, nothing otherwise."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import Progress

    with Progress(console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def _print(result: dict[str, Any], output: str, headline: str) -> None:
    if output == "json":
        emit_json(result)
        return
    latency = result["latency_ms"]
    click.echo(f"{headline}; latency p50 {latency['p50']:g} ms, p99 {latency['p99']:g} ms")
    for name in ("stages_us", "cpu_us_per_rollout", "sizes", "machine", "versions"):
        if name in result:
            click.echo(f"\n{name.replace('_', ' ')}")
            click.echo(table(["what", "figure"], result[name].items()))
