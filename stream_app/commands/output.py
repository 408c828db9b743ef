"""What all commands share: the --json option and its printing."""

import click
import orjson

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON for machines.")


def echo_json(value: object) -> None:
    """Print a value as indented JSON."""
    click.echo(orjson.dumps(value, option=orjson.OPT_INDENT_2).decode())
