"""The command `tokens keygen`."""

from pathlib import Path

import click

from stream_app.wire.token_keys import KEY_BITS, generate


@click.group()
def tokens() -> None:
    """Admission tokens: one report per user, without knowing who."""


@tokens.command()
@click.argument("experiment")
@click.option(
    "--folder",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    show_default="where you are",
    help="Where the two files go; made if it is not there.",
)
@click.option(
    "--bits",
    type=click.Choice([str(bits) for bits in KEY_BITS]),
    default=str(KEY_BITS[0]),
    show_default=True,
    help="Longer keys make longer tokens, and take longer to sign.",
)
def keygen(experiment: str, folder: Path, bits: str) -> None:
    """Make the key that signs the tokens of EXPERIMENT; nothing is overwritten.

    Example: shufflebandit tokens keygen banners --folder /etc/shufflebandit
    """
    made = generate(folder.absolute(), experiment, int(bits))
    click.echo(f"private key, for the issuer only: {made.private}")
    click.echo(f"public key, for the service and the page: {made.public}")
    click.echo("add to the settings of gateway and shuffle stage (several: with commas between):")
    click.echo("[tokens]")
    click.echo(f'keys = "{experiment}={made.public}"')
