"""The commands `acls show | apply`."""

import click
from rich.table import Table

from stream_app.commands.connection import run, with_settings
from stream_app.commands.output import console, echo_json, json_option
from stream_app.kafka import acls as rules
from stream_app.settings import Settings


@click.group()
def acls() -> None:
    """Who may do what on Kafka: the rights of each role."""


@acls.command()
@click.option(
    "--principal",
    "principals",
    multiple=True,
    metavar="ROLE=User:NAME",
    help="Print calls of kafka-acls.sh that give this user the role's rights; several are allowed.",
)
@json_option
@with_settings
def show(principals: tuple[str, ...], as_json: bool, settings: Settings) -> None:
    """What each role needs, as a table or as calls of kafka-acls.sh; nothing is changed.

    Example: shufflebandit acls show --principal client=User:web --principal agent=User:agent
    """
    if principals:
        wanted = rules.rules(settings, map(rules.principal, principals))
        lines = rules.command_lines(settings.kafka.bootstrap, wanted)
        if as_json:
            echo_json({"rules": [str(rule) for rule in wanted], "commands": lines})
        else:
            click.echo("\n".join(lines))
        return
    found = {role: rules.rights(settings, role) for role in rules.roles()}
    if as_json:
        echo_json({role: [str(right) for right in rights] for role, rights in found.items()})
        return
    table = Table(box=None, pad_edge=False)
    for heading in ("role", "operation", "on", "name"):
        table.add_column(heading)
    for role, rights in found.items():
        for right in rights:
            star = "*" if right.pattern is rules.Pattern.PREFIXED else ""
            name = f"{right.name}{star}"
            table.add_row(role, right.operation.name, right.resource.flag, name)
    console().print(table)


@acls.command()
@click.option(
    "--principal",
    "principals",
    multiple=True,
    required=True,
    metavar="ROLE=User:NAME",
    help="A user of Kafka's, and the role whose rights it gets; several are allowed.",
)
@click.option(
    "--remove-others",
    is_flag=True,
    help="Also take from these users what else they may do on the service's resources.",
)
@with_settings
def apply(principals: tuple[str, ...], remove_others: bool, settings: Settings) -> None:
    """Give users the rights of their roles; the settings' user must be an administrator of Kafka.

    What is there already stays as it is. Nothing is removed unless --remove-others is given.

    Example: shufflebandit acls apply --principal client=User:web --principal shuffle=User:shuffle
    """
    wanted = rules.rules(settings, map(rules.principal, principals))
    done = run(settings, rules.apply(settings, wanted, remove_others=remove_others))
    for rule in done.granted:
        click.echo(f"granted {rule}")
    for rule in done.removed:
        click.echo(f"removed {rule}")
    for rule in done.others:
        click.echo(f"warning: not of its role, and kept: {rule}", err=True)
    click.echo(f"{len(done.granted)} rights granted, {len(done.present)} were there already")
