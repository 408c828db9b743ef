"""The command line: gathers the commands and turns errors into one line and an exit code."""

import importlib
import sys

import click
from click.utils import make_default_short_help

from stream_app.errors import ShufflebanditError

# Every command: the module it is in, and the first sentence of its help. A module is imported when
# its command is asked for, since some (faust, scipy) take long; the list of commands imports none.
# Commands that play users are the producers': this package names them by path, and never imports
# that one.
COMMANDS = {
    "acls": (
        "stream_app.commands.acls",
        "Who may do what on Kafka: the rights of each role.",
    ),
    "audit": (
        "stream_app.commands.checks",
        "Verify, then count every sum again from the reports; exit code 1 on any difference.",
    ),
    "broker": (
        "stream_app.commands.broker",
        "Run a local Kafka in the foreground until Ctrl-C; for development, not for production.",
    ),
    "calibrate": (
        "stream_app.commands.privacy",
        "Noise for one batch, with its certificate.",
    ),
    "certify": (
        "stream_app.commands.privacy",
        "Recompute a certificate; exit code 1 if it does not hold.",
    ),
    "demo": (
        "producers.commands.demo",
        "Run everything once: local Kafka, service, simulated users, live view, checks.",
    ),
    "demo-web": (
        "producers.commands.demo_web",
        "Serve a shop page to try: the browser adds the noise.",
    ),
    "experiment": (
        "stream_app.commands.experiment",
        "Define, watch and stop experiments.",
    ),
    "observe": (
        "producers.commands.observe",
        "Keep the demo running with Prometheus, and Grafana where it is installed.",
    ),
    "replay": (
        "producers.commands.replay",
        "Play logged traffic again: what would the private bandit have decided, and when?",
    ),
    "run": (
        "stream_app.commands.run",
        "Run the service until Ctrl-C or SIGTERM.",
    ),
    "simulate": (
        "stream_app.commands.simulate",
        "Regret of an experiment file, its presets and baselines, without Kafka.",
    ),
    "top": (
        "stream_app.commands.top",
        "Watch experiment NAME, or all of them, until Ctrl-C.",
    ),
    "tokens": (
        "stream_app.commands.tokens",
        "Admission tokens: one report per user, without knowing who.",
    ),
    "topics": (
        "stream_app.commands.topics",
        "The topics that the service needs.",
    ),
    "users": (
        "producers.commands.users",
        "Simulated users for experiment NAME, until it ends: each sees an arm, clicks or not, "
        "reports.",
    ),
    "verify": (
        "stream_app.commands.checks",
        "Check an experiment from its public topics; exit code 1 on any difference.",
    ),
}


class _Lazy(click.Group):
    """A group that imports a command when it is needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module = importlib.import_module(COMMANDS[cmd_name][0])
        command: click.Command = getattr(module, cmd_name.replace("-", "_"))
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """As click's own, from the table above."""
        width = formatter.width - 6 - max(map(len, COMMANDS))
        with formatter.section("Commands"):
            formatter.write_dl(
                [
                    (name, make_default_short_help(COMMANDS[name][1], width))
                    for name in self.list_commands(ctx)
                ]
            )


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
