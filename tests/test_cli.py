"""The commands without Kafka, as a user meets them."""

import subprocess
import sys

import click
import pytest

from stream_app import cli


def test_help_imports_no_command() -> None:
    """The list of commands costs no import of numpy, Kafka's or faust's libraries."""
    script = (
        "import sys; from stream_app.cli import cli; cli.main(['--help'], standalone_mode=False); "
        "print('imported', sorted({'numpy', 'aiokafka', 'faust', 'scipy'} & set(sys.modules)))"
    )
    shown = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    ).stdout

    assert "imported []" == shown.splitlines()[-1]


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_the_list_says_what_the_command_says(name: str) -> None:
    """The table's sentence is the beginning of the command's own help."""
    command = cli.cli.get_command(click.Context(cli.cli), name)

    assert command is not None
    assert " ".join((command.help or "").split()).startswith(cli.COMMANDS[name][1])


def test_top_is_light() -> None:
    """Watching needs no statistics library, no application framework and no local broker."""
    heavy = "{'scipy', 'faust', 'stream_app.local.broker', 'stream_app.app'}"
    script = f"import sys, stream_app.commands.top; print(sorted({heavy} & set(sys.modules)))"
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert "[]" == done.stdout.strip()
