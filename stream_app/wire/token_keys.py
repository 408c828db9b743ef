"""Key files of admission tokens: PEM, and each key for one experiment only.

The public half is for those who verify (gateway, shuffle stage) and for the page that pins it; the
private half is the issuer's alone and is never read here, only made.
"""

import base64
import hashlib
import os
import re
from pathlib import Path
from typing import NamedTuple

from cryptography.exceptions import UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric import rsa
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.serialization import (
    Encoding,
    NoEncryption,
    PrivateFormat,
    PublicFormat,
    load_pem_public_key,
)

from stream_app.errors import ConfigurationError

# 2048 bits are what RFC 9474 asks for at least; above 4096 an issuer in Python takes a tenth of a
# second a token. Three sizes only, so that a token has one of three lengths.
KEY_BITS = (2048, 3072, 4096)
# The one exponent that every library and WebCrypto take; RFC 9474 expects it.
EXPONENT = 65537
# As the name of an experiment; here it becomes a file's name, so nothing else may pass.
_NAME = re.compile(r"[a-z0-9][a-z0-9._-]{0,63}")
# Only its owner may read the private key.
_PRIVATE_MODE = 0o600
_PUBLIC_MODE = 0o644


class KeyFiles(NamedTuple):
    """Where the two halves of a new key are."""

    private: Path
    public: Path


def read_public_key(path: Path | str, setting: str) -> RSAPublicKey:
    """The key in a PEM file. Raises ConfigurationError, which names the setting."""
    where = f"{setting} = {str(path)!r}"
    try:
        pem = Path(path).read_bytes()
    except OSError as error:
        raise ConfigurationError(
            f"{where}: cannot be read: {error.strerror}; make it with shufflebandit tokens keygen"
        ) from None
    if b"PRIVATE KEY" in pem:
        raise ConfigurationError(
            f"{where}: is a private key, which belongs to the issuer only; give the public one"
        )
    return parse_public_key(pem, where)


def parse_public_key(pem: bytes, where: str) -> RSAPublicKey:
    """The key in a PEM text. Raises ConfigurationError, which begins with `where`."""
    try:
        key = load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm):
        raise ConfigurationError(
            f"{where}: not a public key in PEM; make one with shufflebandit tokens keygen"
        ) from None
    if not isinstance(key, RSAPublicKey):
        raise ConfigurationError(
            f"{where}: not an RSA key; make one with shufflebandit tokens keygen"
        )
    check_size(key, where)
    return key


def check_size(key: RSAPublicKey, where: str) -> None:
    """Refuse a modulus or an exponent that tokens do not use. Raises ConfigurationError."""
    if key.key_size not in KEY_BITS:
        raise ConfigurationError(
            f"{where}: an RSA key of {key.key_size} bits; it must have 2048, 3072 or 4096"
        )
    if key.public_numbers().e != EXPONENT:
        raise ConfigurationError(f"{where}: its public exponent must be {EXPONENT}; make a new key")


def key_id(key: RSAPublicKey) -> str:
    """What a browser calls the key that it pins: SHA-256 of its SubjectPublicKeyInfo, base64url."""
    der = key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
    digest = hashlib.sha256(der).digest()
    return base64.urlsafe_b64encode(digest).decode().rstrip("=")


def generate(folder: Path | str, experiment: str, bits: int = KEY_BITS[0]) -> KeyFiles:
    """Make a key for one experiment; nothing is overwritten. Raises ConfigurationError."""
    if not _NAME.fullmatch(experiment):
        raise ConfigurationError(
            f"experiment = {experiment[:80]!r}: must be 1 to 64 of a-z 0-9 . _ -, beginning with a "
            "letter or digit"
        )
    if bits not in KEY_BITS:
        raise ConfigurationError(f"bits = {bits}: must be 2048, 3072 or 4096")
    files = KeyFiles(
        Path(folder) / f"{experiment}.private.pem", Path(folder) / f"{experiment}.public.pem"
    )
    for path in files:
        if path.exists():
            raise ConfigurationError(
                f"{path}: exists already and is not overwritten; for a second key give another "
                "folder"
            )
    key = rsa.generate_private_key(EXPONENT, bits)
    private = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    public = key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    try:
        Path(folder).mkdir(parents=True, exist_ok=True)
        _write(files.private, private, _PRIVATE_MODE)
        _write(files.public, public, _PUBLIC_MODE)
    except OSError as error:
        raise ConfigurationError(
            f"folder = {str(folder)!r}: cannot be written: {error.strerror}; choose another"
        ) from None
    return files


def _write(path: Path, content: bytes, mode: int) -> None:
    # Exclusive, and with its mode from the beginning: no moment at which others could read it.
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    with open(descriptor, "wb") as file:
        file.write(content)
