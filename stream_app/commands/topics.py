"""The command `topics create`."""

import click

from stream_app import kafka
from stream_app.commands.connection import run, with_settings
from stream_app.settings import Settings


@click.group()
def topics() -> None:
    """The topics that the service needs."""


@topics.command()
@click.option(
    "--partitions",
    type=click.IntRange(1, 10_000),
    help="Of each topic; experiments and workers spread over them. It cannot be changed later.  "
    f"[default: as many as exist, else {kafka.DEFAULT_PARTITIONS}]",
)
@click.option(
    "--replication",
    default=1,
    show_default=True,
    type=click.IntRange(1, 100),
    help="Copies of each partition; 3 in production.",
)
@with_settings
def create(partitions: int | None, replication: int, settings: Settings) -> None:
    """Create the topics that are missing; those that exist are left as they are.

    Example: shufflebandit topics create --partitions 8 --replication 3
    """
    created = run(settings, kafka.create_topics(settings.kafka, partitions, replication))
    for name in created:
        click.echo(f"created {name}")
    if not created:
        click.echo(f"all topics of {settings.kafka.topic_prefix} exist already")
