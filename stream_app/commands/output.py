"""What all commands share: the --json option, its printing, the console."""

import click
import orjson
from rich.console import Console

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")


def console() -> Console:
    """Standard output; as wide as a table needs where there is no terminal to fit into."""
    found = Console(highlight=False)
    return found if found.is_terminal else Console(highlight=False, width=120)


def echo_json(value: object) -> None:
    """Print a value as indented JSON."""
    click.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())
