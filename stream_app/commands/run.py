"""`run`: the service itself."""

import dataclasses
import sys

import click

from stream_app.commands.connection import with_settings
from stream_app.errors import ConfigurationError
from stream_app.settings import Settings

ROLES = "shuffle,agent,monitor"
ALL_ROLES = f"{ROLES},gateway"


@click.command()
@click.option(
    "--roles", default=ROLES, show_default=True, help=f"What this worker does, of {ALL_ROLES}."
)
@click.option("--web-port", type=click.IntRange(1, 65535), help="The monitor's port.")
@click.option(
    "--metrics-port", type=click.IntRange(0, 65535), help="The metrics' port; 0 for no metrics."
)
@with_settings
def run(settings: Settings, roles: str, web_port: int | None, metrics_port: int | None) -> None:
    """Run the service until Ctrl-C or SIGTERM.

    Several workers share the work; each may have all roles or some. The agent needs no access to
    the topics `reports` and `windows`.
    """
    from stream_app import app  # noqa: PLC0415 - faust takes long to import

    if web_port is not None:
        settings = dataclasses.replace(
            settings, monitor=dataclasses.replace(settings.monitor, port=web_port)
        )
    if metrics_port is not None:
        settings = dataclasses.replace(
            settings, metrics=dataclasses.replace(settings.metrics, port=metrics_port)
        )
    wanted = [role.strip() for role in roles.split(",")]
    for role in wanted:
        if role not in list(app.Role):
            raise ConfigurationError(f"--roles {role!r}: must be one or more of {ALL_ROLES}")
    sys.exit(app.serve(settings, frozenset(app.Role(role) for role in wanted)))
