"""Admission tokens, for the product's backend: sign them blindly, and ask for them from Python.

    issuer = Issuer({"banners": "banners.private.pem"}, FileTokenStore("tokens.sqlite"))
    signature = issuer.sign("banners", user, blinded)     # after the product's own login

The issuer knows who asks and not what it signs; gateway and shuffle stage (`stream_app.wire.token`)
see what was signed and not for whom. The scheme is RSABSSA-SHA384-PSS-Deterministic of RFC 9474;
producers/web/TOKENS.md says what stands on the wire, and producers/web/tokens.js is the browser's
half of it.

Three things keep the promise, and whoever edits this must keep them:
- A request is claimed in the store before it is signed, so a crash between the two loses nothing:
  the same request is signed again.
- What is refused for its form is refused before it is claimed, so it costs the user nothing.
- A key signs for one experiment, since nobody sees what it signs.
"""

import hashlib
import math
import secrets
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path

from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey, RSAPublicKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from producers.token_store import FileTokenStore, MemoryTokenStore, TokenStore
from stream_app.errors import ConfigurationError, InvalidInput, ShufflebanditError
from stream_app.wire.token import HASH, PADDING, SALT_BYTES, encode_token, message
from stream_app.wire.token_keys import (
    EXPONENT,
    KeyFiles,
    check_size,
    generate,
    key_id,
    read_public_key,
)

__all__ = [
    "FileTokenStore",
    "Issuer",
    "KeyFiles",
    "MemoryTokenStore",
    "TokenRefusal",
    "TokenRefused",
    "TokenStore",
    "blind",
    "finalize",
    "generate",
    "key_id",
    "message",
    "read_public_key",
]

# Bytes of SHA-384.
_HASH_BYTES = 48
# The last byte of every EMSA-PSS encoding (RFC 8017, 9.1.1).
_TRAILER = b"\xbc"

PrivateKeyPath = Path | str
RandomBytes = Callable[[int], bytes]


class TokenRefusal(StrEnum):
    """Why a request gets no signature."""

    UNKNOWN_EXPERIMENT = "unknown_experiment"
    UNKNOWN_KEY = "unknown_key"  # the page pins a key that this issuer no longer has, or not yet
    MALFORMED = "malformed"
    SPENT = "spent"  # this user had a token of this experiment, for another request


class TokenRefused(InvalidInput):
    """The issuer does not sign this; `reason` says why, for the answer to the browser."""

    def __init__(self, reason: TokenRefusal, text: str) -> None:
        super().__init__(text)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class _SigningKey:
    """The numbers of a private key; none of them is ever printed."""

    id: str
    key: RSAPrivateKey = field(repr=False)
    n: int = field(repr=False)
    p: int = field(repr=False)
    q: int = field(repr=False)
    d_mod_p: int = field(repr=False)
    d_mod_q: int = field(repr=False)
    q_inverse: int = field(repr=False)

    @property
    def size(self) -> int:
        """Bytes of the modulus."""
        return self.key.key_size // 8

    def power(self, value: int) -> int:
        """RSASP1 (RFC 8017, 5.2.1): `value ** d mod n`.

        `cryptography` offers no private operation without padding, so this is Python's `pow`,
        whose time depends on its numbers. So the base is multiplied by a fresh random `r ** e`
        first: what is raised is then independent of what the client sent, and many measured
        times do not add up to the key. The exponents themselves are the same each time: whoever
        can watch the caches of this very machine is not kept out.

        By the Chinese remainder theorem, four times as fast. The result is checked, because one
        wrong result of that method, say by a memory error, gives the key away.
        """
        factor, inverse = _blinding_factor(self.n, self.size, secrets.token_bytes)
        hidden = value * pow(factor, EXPONENT, self.n) % self.n
        by_p = pow(hidden % self.p, self.d_mod_p, self.p)
        by_q = pow(hidden % self.q, self.d_mod_q, self.q)
        raised = by_q + (by_p - by_q) * self.q_inverse % self.p * self.q
        result = raised * inverse % self.n
        if pow(result, EXPONENT, self.n) != value:
            raise ShufflebanditError("a signature came out wrong and was not sent; check memory")
        return result


class Issuer:
    """Signs one blinded token for each user and experiment. Any thread may use it.

    `keys`: for each experiment the file of its private key, or several of them: the first is the
    one that new pages pin, the others still serve pages from before a change.

    `sign` takes 7 ms of CPU with 2048 bits (`tests/benchmarks/tokens.py`), during which no other
    thread of the process runs, and the store may wait for a disk: where an event loop runs, call
    it with `asyncio.to_thread`; for more than 100 users a second, run several processes.
    """

    def __init__(
        self, keys: Mapping[str, PrivateKeyPath | Sequence[PrivateKeyPath]], store: TokenStore
    ) -> None:
        self._store = store
        self._keys: dict[str, list[_SigningKey]] = {}
        owners: dict[str, str] = {}
        for experiment, given in keys.items():
            paths = [given] if isinstance(given, Path | str) else given
            if not paths:
                raise ConfigurationError(f"issuer: experiment {experiment}: give a private key")
            self._keys[experiment] = [_read_private_key(path) for path in paths]
            for key in self._keys[experiment]:
                owner = owners.setdefault(key.id, experiment)
                if owner != experiment:
                    raise ConfigurationError(
                        f"issuer: experiments {owner} and {experiment} have the same key; give "
                        "each its own, since nobody sees what it signs"
                    )

    def sign(self, experiment: str, user: str, blinded: bytes, key: str | None = None) -> bytes:
        """BlindSign (RFC 9474, 4.3) for a user whom the product knows. Raises TokenRefused.

        `key`: the id of the key that the page pins, as it sends it; without, the first key.
        """
        chosen = self._chosen(experiment, key)
        if len(blinded) != chosen.size:
            raise TokenRefused(
                TokenRefusal.MALFORMED, f"blinded message: {len(blinded)} bytes, not {chosen.size}"
            )
        value = int.from_bytes(blinded)
        if not 0 < value < chosen.n:
            raise TokenRefused(TokenRefusal.MALFORMED, "blinded message: out of the key's range")
        self._claim(experiment, user, chosen, blinded)
        return chosen.power(value).to_bytes(chosen.size)

    def token(self, experiment: str, user: str, batch_id: str, report_id: bytes | str) -> str:
        """A finished token, for a backend that reports for its users itself: nothing is hidden.

        It counts as the user's one token, as a blinded one does. Raises TokenRefused, and
        InvalidInput for malformed ids.
        """
        chosen = self._chosen(experiment, None)
        signed = message(batch_id, report_id)
        self._claim(experiment, user, chosen, signed)
        return encode_token(chosen.key.sign(signed, PADDING, HASH))

    def _chosen(self, experiment: str, key: str | None) -> _SigningKey:
        keys = self._keys.get(experiment)
        if keys is None:
            raise TokenRefused(
                TokenRefusal.UNKNOWN_EXPERIMENT,
                f"experiment {experiment[:80]!r}: this issuer has no key for it",
            )
        if key is None:
            return keys[0]
        for each in keys:
            if each.id == key:
                return each
        raise TokenRefused(
            TokenRefusal.UNKNOWN_KEY, f"key {key[:80]!r}: not one of this issuer's; reload the page"
        )

    def _claim(self, experiment: str, user: str, key: _SigningKey, request: bytes) -> None:
        if not user:
            raise TokenRefused(
                TokenRefusal.MALFORMED, "user: empty; everybody would share one token"
            )
        # With the key: the same bytes under another key are another request.
        digest = hashlib.sha256(key.id.encode() + request).digest()
        if not self._store.claim(experiment, user, digest):
            raise TokenRefused(
                TokenRefusal.SPENT, f"this user had a token of {experiment} for another request"
            )


def blind(
    public_key: RSAPublicKey, signed: bytes, random: RandomBytes = secrets.token_bytes
) -> tuple[bytes, bytes]:
    """Blind (RFC 9474, 4.2): what goes to the issuer, and the secret that undoes it.

    Keep both until the token is finished: after a lost answer only this request is signed again.
    Then forget the secret, which links the token to the request. `random` gives the salt first,
    then the blinding factor; only tests have another one.
    """
    n = public_key.public_numbers().n
    size = public_key.key_size // 8
    encoded = _pss_encode(signed, size, random(SALT_BYTES))
    if math.gcd(encoded, n) != 1:  # never: it would have factored the key
        raise InvalidInput("message: it shares a factor with the key")
    factor, inverse = _blinding_factor(n, size, random)
    blinded = encoded * pow(factor, EXPONENT, n) % n
    return blinded.to_bytes(size), inverse.to_bytes(size)


def finalize(public_key: RSAPublicKey, signed: bytes, signature: bytes, secret: bytes) -> bytes:
    """Finalize (RFC 9474, 4.4): the token, checked. Raises InvalidInput if the issuer cheated."""
    n = public_key.public_numbers().n
    size = public_key.key_size // 8
    if len(signature) != size:
        raise InvalidInput(f"the issuer's signature: {len(signature)} bytes, not {size}")
    token = (int.from_bytes(signature) * int.from_bytes(secret) % n).to_bytes(size)
    try:
        public_key.verify(token, signed, PADDING, HASH)
    except InvalidSignature:
        raise InvalidInput("the issuer's signature: not one of this key and request") from None
    return token


def _blinding_factor(n: int, size: int, random: RandomBytes) -> tuple[int, int]:
    """A unit mod n, all equally likely, and its inverse."""
    while True:
        factor = int.from_bytes(random(size))
        if 0 < factor < n and math.gcd(factor, n) == 1:
            return factor, pow(factor, -1, n)


def _pss_encode(signed: bytes, size: int, salt: bytes) -> int:
    """EMSA-PSS-ENCODE (RFC 8017, 9.1.1) with one bit less than the modulus has."""
    hashed = hashlib.sha384(signed).digest()
    check = hashlib.sha384(bytes(8) + hashed + salt).digest()
    width = size - _HASH_BYTES - len(_TRAILER)
    block = int.from_bytes(b"\x01" + salt)
    mask = int.from_bytes(_mgf1(check, width))
    # The topmost bit is cleared, so that the number stays below the modulus.
    masked = (block ^ mask) & ((1 << (8 * width - 1)) - 1)
    return int.from_bytes(masked.to_bytes(width) + check + _TRAILER)


def _mgf1(seed: bytes, length: int) -> bytes:
    """The mask generation function of RFC 8017, B.2.1."""
    blocks = -(-length // _HASH_BYTES)
    mask = b"".join(hashlib.sha384(seed + number.to_bytes(4)).digest() for number in range(blocks))
    return mask[:length]


def _read_private_key(path: PrivateKeyPath) -> _SigningKey:
    where = f"issuer: {str(path)!r}"
    try:
        key = load_pem_private_key(Path(path).read_bytes(), password=None)
    except OSError as error:
        raise ConfigurationError(
            f"{where}: cannot be read: {error.strerror}; make it with shufflebandit tokens keygen"
        ) from None
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise ConfigurationError(
            f"{where}: not an unencrypted private key in PEM; make one with shufflebandit tokens "
            "keygen"
        ) from None
    if not isinstance(key, RSAPrivateKey):
        raise ConfigurationError(
            f"{where}: not an RSA key; make one with shufflebandit tokens keygen"
        )
    check_size(key.public_key(), where)
    numbers = key.private_numbers()
    return _SigningKey(
        id=key_id(key.public_key()),
        key=key,
        n=numbers.public_numbers.n,
        p=numbers.p,
        q=numbers.q,
        d_mod_p=numbers.dmp1,
        d_mod_q=numbers.dmq1,
        q_inverse=numbers.iqmp,
    )
