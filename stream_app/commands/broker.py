"""`broker`: a local Kafka for development."""

from pathlib import Path

import click

from stream_app.local.broker import run_foreground
from stream_app.local.kafka_jars import fetch


@click.command()
@click.option("--port", type=click.IntRange(1, 65535), help="Where it listens; default: any.")
@click.option(
    "--data",
    type=click.Path(file_okay=False, path_type=Path),
    help="A folder that keeps the records; default: a temporary one, deleted at the end.",
)
@click.option("--fetch-only", is_flag=True, help="Only download Kafka, and print its folder.")
def broker(port: int | None, data: Path | None, fetch_only: bool) -> None:
    """Run a local Kafka in the foreground until Ctrl-C; for development, not for production."""
    if fetch_only:
        click.echo(fetch())
        return
    run_foreground(port, data)
