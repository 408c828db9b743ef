"""`top`: the live terminal view of any running service."""

import asyncio
import contextlib
import time

import click
from rich.console import Console, RenderableType
from rich.live import Live

from stream_app.commands.connection import run, with_settings
from stream_app.commands.output import console
from stream_app.errors import ConfigurationError
from stream_app.monitor.reader import following
from stream_app.monitor.terminal import headline, overview, render
from stream_app.monitor.view import View
from stream_app.settings import Settings


@click.command()
@click.argument("name", required=False)
@click.option("--once", is_flag=True, help="Print the view once and leave.")
@with_settings
def top(name: str | None, once: bool, settings: Settings) -> None:
    """Watch experiment NAME, or all of them, until Ctrl-C.

    Reads the public topics only; without a terminal it prints a line whenever something changes.
    """
    with contextlib.suppress(KeyboardInterrupt):
        run(settings, _top(settings, name, once, console()))


async def _top(settings: Settings, name: str | None, once: bool, out: Console) -> None:
    view = View()
    async with following(settings.kafka, view):
        await _until_known(view, name)
        if once:
            out.print(_picture(view, name))
        elif out.is_terminal:
            with Live(console=out, auto_refresh=False, screen=True) as live:
                while True:
                    live.update(_picture(view, name), refresh=True)
                    await asyncio.sleep(0.25)
        else:
            await _lines(view, name, out)


async def _until_known(view: View, name: str | None) -> None:
    """Wait until the topics have been read; an experiment that is not there by then is an error."""
    deadline = time.monotonic() + 5
    while time.monotonic() < deadline:
        if (name is None and view.experiments()) or (name and view.snapshot(name)):
            await asyncio.sleep(0.3)
            return
        await asyncio.sleep(0.1)
    if name is not None:
        raise ConfigurationError(
            f"experiment {name!r}: not found; see: shufflebandit experiment list"
        )


def _picture(view: View, name: str | None) -> RenderableType:
    shown = view.snapshot(name) if name is not None else None
    if shown is None:
        return overview(view.experiments())
    return render(shown, f"Guarantee: {shown['words']['guarantee']}.")


async def _lines(view: View, name: str | None, out: Console) -> None:
    last: dict[str, str] = {}
    while True:
        for one in view.experiments():
            shown = view.snapshot(one["name"])
            if shown is None or name not in (None, one["name"]):
                continue
            line = headline(shown)
            if last.get(one["name"]) != line:
                last[one["name"]] = line
                out.print(line)
        await asyncio.sleep(0.25)
