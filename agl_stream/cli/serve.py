"""`agl-stream serve`: the light OpenAI-compatible server for the model being trained."""

from __future__ import annotations

from pathlib import Path

import click

from agl_stream.cli.output import emit_json, output_option
from agl_stream.cli.shared import load_settings


@click.command("serve", short_help="Serve the model being trained over the OpenAI protocol.")
@click.option(
    "--model",
    "model_dir",
    type=click.Path(exists=True, file_okay=False, path_type=Path),
    required=True,
    help="Folder with the base model, in Hugging Face layout; it is version 0.",
)
@click.option("--host", default="127.0.0.1", show_default=True, help="Address to listen on.")
@click.option("--port", type=click.IntRange(0, 65535), default=8000, show_default=True, help="Port; 0 is any free one.")
@click.option("--served-model-name", default="policy", show_default=True, help="Name clients ask for.")
@click.option("--resources-id", help="Resources to follow: each new version is loaded and acknowledged. Without: none.")
@click.option("--worker-id", help="Name in heartbeats.  [default: server-<host>-<port>]")
@click.option(
    "--device", type=click.Choice(["auto", "cpu", "cuda"]), default="auto", show_default=True, help="Where to run."
)
@click.option(
    "--dtype",
    type=click.Choice(["auto", "float32", "bfloat16", "float16"]),
    default="auto",
    show_default=True,
    help="Number format; auto is float32 on CPU and the model's own on a GPU.",
)
@click.option("--threads", type=click.IntRange(min=1), default=1, show_default=True, help="CPU threads of the model.")
@click.option(
    "--cache-tokens",
    type=click.IntRange(min=32),
    default=16_384,
    show_default=True,
    help="Tokens that all requests together may hold in the key-value cache.",
)
@click.option(
    "--max-in-flight",
    type=click.IntRange(min=1),
    default=512,
    show_default=True,
    help="Requests beyond this are answered 503.",
)
@click.option(
    "--drain-seconds",
    type=click.FloatRange(min=0.1),
    default=60.0,
    show_default=True,
    help="How long a new version waits for requests in flight before it cancels them.",
)
@output_option
def command(
    model_dir: Path,
    host: str,
    port: int,
    served_model_name: str,
    resources_id: str | None,
    worker_id: str | None,
    device: str,
    dtype: str,
    threads: int,
    cache_tokens: int,
    max_in_flight: int,
    drain_seconds: float,
    output: str,
) -> None:
    """Answer chat completions with token ids and logprobs, always from the newest version of the model.

    Point AGL_STREAM_UPSTREAM_URL at it. New versions are loaded between requests; weights that do not match their
    announced digest are refused. Prints one line when it is ready and serves until SIGTERM or Ctrl-C.
    """
    import asyncio

    from agl_stream.trainer.server.config import EngineConfig, ServeConfig
    from agl_stream.trainer.server.serve import serve

    settings = load_settings()

    def announce(url: str, version: int) -> None:
        if output == "json":
            emit_json({"upstream_url": url, "model": served_model_name, "resources_version": version})
        else:
            click.echo(f"serve ready on {url}, model {served_model_name} version {version}")

    config = ServeConfig(
        model_dir=model_dir,
        host=host,
        port=port,
        served_name=served_model_name,
        resources_id=resources_id,
        worker_id=worker_id,
        engine=EngineConfig(
            device=device,
            dtype=dtype,
            threads=threads,
            cache_tokens=cache_tokens,
            max_in_flight=max_in_flight,
            drain_seconds=drain_seconds,
        ),
    )
    asyncio.run(serve(settings, config, announce))
