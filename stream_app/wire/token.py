"""Admission tokens: one report per user, without knowing who. For the trusted side only.

A token is a blind RSA signature (RFC 9474, RSABSSA-SHA384-PSS-Deterministic) of the product's own
backend, the issuer. It covers a batch id and a report id, so it fits one report, and a window's own
ids are the list of what is spent. The issuer knows the user and not the report; whoever verifies
knows the report and not the user. Once unblinded it is a plain RSASSA-PSS signature, so that
verifying needs nothing of the blinding; that is in `producers.tokens` and producers/web/tokens.js.

The issuer does not see what it signs. So a key signs for one experiment, and a verifier takes it
for no other.
"""

import base64
import binascii
import re
from collections.abc import Sequence

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.padding import MGF1, PSS
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey
from cryptography.hazmat.primitives.hashes import SHA384

from stream_app.errors import ConfigurationError, InvalidInput
from stream_app.wire.token_keys import KEY_BITS, check_size, read_public_key

# Keeps these signatures apart from whatever else a key may once sign; the zero ends the label.
PREFIX = b"shufflebandit token v1\0"
# Of RFC 9474's variant: as long as the hash.
SALT_BYTES = 48
# Public, so that the issuer and the clients sign and check exactly this.
HASH = SHA384()
PADDING = PSS(mgf=MGF1(HASH), salt_length=SALT_BYTES)
# Two are enough to change keys. Each key more splits the users into smaller crowds, since a token
# shows which key signed it; an issuer with a key for each user could tell them all apart.
MAX_KEYS = 4
# Characters of a token by the bytes of its key: base64url without padding.
TOKEN_CHARACTERS = {bits // 8: -(-bits // 6) for bits in KEY_BITS}

_SETTING = "tokens.keys"
# From base64url to base64, whose own two characters become one that neither has.
_TO_STANDARD = bytes.maketrans(b"-_+/", b"+/!!")
# `<sequence>.<SHA-256, base64url>`, as `core.terms` makes it.
_BATCH_ID = re.compile(r"[0-9]{1,15}\.[A-Za-z0-9_-]{43}")
_REPORT_ID = re.compile(r"[0-9a-f]{32}")
_REPORT_ID_BYTES = 16


def message(batch_id: str, report_id: bytes | str) -> bytes:
    """What a token signs; the report id as 16 bytes or as in the report. Raises InvalidInput."""
    if isinstance(report_id, bytes):
        fits = len(report_id) == _REPORT_ID_BYTES
        digits = report_id.hex()
    else:
        fits = _REPORT_ID.fullmatch(report_id) is not None
        digits = report_id
    if not fits:
        raise InvalidInput("report id: must be 32 lower-case hexadecimal characters")
    if not _BATCH_ID.fullmatch(batch_id):
        raise InvalidInput("batch id: must be <sequence>.<43 base64url characters>")
    return PREFIX + f"{batch_id}{digits}".encode()


def encode_token(token: bytes) -> str:
    """A token as it stands in a report: base64url without padding."""
    return base64.urlsafe_b64encode(token).decode().rstrip("=")


def decode_token(text: str) -> bytes:
    """The bytes of a token; only the one text that `encode_token` makes. Raises InvalidInput."""
    if len(text) not in TOKEN_CHARACTERS.values():
        raise InvalidInput("token: its length is that of no key")
    try:
        standard = text.encode("ascii").translate(_TO_STANDARD) + b"=" * (-len(text) % 4)
        token = binascii.a2b_base64(standard)
    except ValueError:
        raise InvalidInput("token: not base64url without padding") from None
    # The decoder passes over what it does not know, and over bits after the last byte.
    if binascii.b2a_base64(token, newline=False) != standard:
        raise InvalidInput("token: not base64url without padding")
    return token


class Verifier:
    """Checks the tokens of one experiment. Immutable; any thread may use it."""

    __slots__ = ("_keys", "experiment")

    def __init__(self, experiment: str, keys: Sequence[RSAPublicKey]) -> None:
        where = f"{_SETTING}: experiment {experiment}"
        if not 1 <= len(keys) <= MAX_KEYS:
            raise ConfigurationError(f"{where}: has {len(keys)} keys; give 1 to {MAX_KEYS}")
        self.experiment = experiment
        self._keys: dict[int, list[RSAPublicKey]] = {}  # by the length of their tokens
        for key in keys:
            check_size(key, where)
            self._keys.setdefault(key.key_size // 8, []).append(key)

    def verify(self, batch_id: str, report_id: bytes | str, token: bytes) -> bool:
        """Whether one of the keys signed this batch and report; False also for malformed ids."""
        keys = self._keys.get(len(token))
        if keys is None:
            return False
        try:
            signed = message(batch_id, report_id)
        except InvalidInput:
            return False
        for key in keys:
            try:
                key.verify(token, signed, PADDING, HASH)
            except InvalidSignature:
                continue
            return True
        return False

    def admits(self, batch_id: str, report_id: bytes | str, text: str) -> bool:
        """As `verify`, for a token's text as it came in."""
        try:
            token = decode_token(text)
        except InvalidInput:
            return False
        return self.verify(batch_id, report_id, token)


def load_verifiers(keys: str) -> dict[str, Verifier]:
    """Verifiers by experiment, from the setting: `experiment=file`, with commas between.

    An experiment that stands there several times has several keys, for the time of a change. One
    that does not stand there asks for no tokens. Raises ConfigurationError: a key that cannot be
    used stops the process at its start, and never admits reports without tokens.
    """
    found: dict[str, list[RSAPublicKey]] = {}
    owners: dict[int, str] = {}
    for entry in filter(None, map(str.strip, keys.split(","))):
        experiment, equals, path = entry.partition("=")
        if not (experiment and equals and path):
            raise ConfigurationError(f"{_SETTING} = {entry!r}: must be experiment=file")
        key = read_public_key(path, _SETTING)
        modulus = key.public_numbers().n
        owner = owners.setdefault(modulus, experiment)
        if owner != experiment:
            raise ConfigurationError(
                f"{_SETTING} = {entry!r}: the key of experiment {owner}; give each its own, since "
                "an issuer does not see what it signs"
            )
        if modulus not in [known.public_numbers().n for known in found.get(experiment, [])]:
            found.setdefault(experiment, []).append(key)
    return {experiment: Verifier(experiment, each) for experiment, each in found.items()}
