"""`tokens keygen`: the files, what is printed, errors in one line."""

import tomllib
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from stream_app.commands.tokens import tokens
from stream_app.errors import ConfigurationError
from stream_app.wire.token import load_verifiers


def keygen(*arguments: object) -> Result:
    return CliRunner().invoke(tokens, ["keygen", *map(str, arguments)])


def test_two_files_and_the_settings_to_add(tmp_path: Path) -> None:
    """What is printed is a settings file, and it loads."""
    done = keygen("banners", "--folder", tmp_path / "keys", "--bits", "3072")
    lines = done.output.splitlines()
    settings = tomllib.loads("\n".join(lines[lines.index("[tokens]") :]))

    assert 0 == done.exit_code
    assert f"private key, for the issuer only: {tmp_path}/keys/banners.private.pem" == lines[0]
    assert f"public key, for the service and the page: {tmp_path}/keys/banners.public.pem" in lines
    assert "banners" in load_verifiers(settings["tokens"]["keys"])
    assert 0o600 == (tmp_path / "keys" / "banners.private.pem").stat().st_mode & 0o777


def test_nothing_is_overwritten(tmp_path: Path) -> None:
    """The second time it is refused, and names the file."""
    keygen("banners", "--folder", tmp_path)
    again = keygen("banners", "--folder", tmp_path)

    assert isinstance(again.exception, ConfigurationError)
    assert "banners.private.pem: exists already" in str(again.exception)


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (("Banners!",), "experiment = 'Banners!': must be"),
        (("banners", "--folder", "/proc/nowhere"), "folder = '/proc/nowhere': cannot be written"),
    ],
)
def test_errors_are_one_line(arguments: tuple[str, ...], problem: str) -> None:
    """Setting, value, remedy."""
    done = keygen(*arguments)

    assert isinstance(done.exception, ConfigurationError)
    assert str(done.exception).startswith(problem)
    assert "\n" not in str(done.exception)


def test_other_sizes_are_refused(tmp_path: Path) -> None:
    """By click, with the list."""
    done = keygen("banners", "--folder", tmp_path, "--bits", "1024")

    assert 2 == done.exit_code
    assert "'2048', '3072', '4096'" in done.output
