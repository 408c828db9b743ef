"""The command line: gathers the commands and turns errors into one line and an exit code."""

import sys

import click

from stream_app.commands import privacy, simulate
from stream_app.errors import ShufflebanditError


@click.group(context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="shufflebandit")
def cli() -> None:
    """Private bandits in the shuffle model: pick the best arm from clicks that nobody may see."""


for command in (privacy.calibrate, privacy.certify, simulate.simulate):
    cli.add_command(command)


def main() -> None:
    """Run a command; exit codes: 1 a check failed, 2 wrong input, 3 something is unavailable."""
    try:
        cli.main(standalone_mode=False)
    except ShufflebanditError as error:
        click.echo(f"shufflebandit: {error}", err=True)
        sys.exit(error.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(2)
    except click.exceptions.Exit as exit_:
        sys.exit(exit_.exit_code)
    except (click.Abort, KeyboardInterrupt):
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()
        sys.exit(0)
