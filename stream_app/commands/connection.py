"""What commands that talk to Kafka share: --config, --bootstrap, and errors in one line."""

import asyncio
import dataclasses
import functools
import logging
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import click

from stream_app import kafka
from stream_app.settings import Settings, load_settings

T = TypeVar("T")


def with_settings(command: Callable[..., None]) -> Callable[..., None]:
    """Add --config and --bootstrap; the command gets the resulting `settings`."""

    @click.option(
        "--config",
        type=click.Path(path_type=Path),
        envvar="SHUFFLEBANDIT_CONFIG",
        metavar="FILE",
        help="Settings, a TOML file.  [env: SHUFFLEBANDIT_CONFIG]",
    )
    @click.option(
        "--bootstrap",
        metavar="ADDRESS",
        help="Kafka's bootstrap servers, as in localhost:9092; over those of the settings.",
    )
    @functools.wraps(command)
    def wrapped(*args: Any, config: Path | None, bootstrap: str | None, **options: Any) -> None:
        settings = load_settings(config)
        if bootstrap:
            reached = dataclasses.replace(settings.kafka, bootstrap=bootstrap)
            settings = dataclasses.replace(settings, kafka=reached)
        command(*args, settings=settings, **options)

    return wrapped


def run(settings: Settings, work: Coroutine[Any, Any, T]) -> T:
    """Run a short command's work; Kafka's errors become Unavailable, its log lines stay silent."""
    # Without any handler Python would print warnings; the level must stay, `kafka` reads the lines.
    logging.getLogger("aiokafka").addHandler(logging.NullHandler())
    try:
        return asyncio.run(work)
    except (kafka.KafkaError, TimeoutError) as error:
        raise kafka.unreachable(settings.kafka, error) from None
