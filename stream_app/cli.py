"""The command line: gathers the commands and turns errors into one line and an exit code."""

import importlib
import sys

import click

from stream_app.errors import ShufflebanditError

# Every command and the module it is in; modules are imported when their command is asked for,
# since some (faust, scipy) take long. Commands that play users are the producers': this package
# names them by path only, and never imports that one.
COMMANDS = {
    "acls": "stream_app.commands.acls",
    "audit": "stream_app.commands.checks",
    "broker": "stream_app.commands.broker",
    "calibrate": "stream_app.commands.privacy",
    "certify": "stream_app.commands.privacy",
    "demo": "producers.commands.demo",
    "demo-web": "producers.commands.demo_web",
    "experiment": "stream_app.commands.experiment",
    "observe": "producers.commands.observe",
    "replay": "producers.commands.replay",
    "run": "stream_app.commands.run",
    "simulate": "stream_app.commands.simulate",
    "top": "stream_app.commands.top",
    "topics": "stream_app.commands.topics",
    "users": "producers.commands.users",
    "verify": "stream_app.commands.checks",
}


class _Lazy(click.Group):
    """A group that imports a command when it is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(COMMANDS[cmd_name])
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command


@click.group(
    cls=_Lazy, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100}
)
@click.version_option(package_name="shufflebandit")
def cli() -> None:
    """Private bandits in the shuffle model: pick the best arm from clicks that nobody may see."""


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
