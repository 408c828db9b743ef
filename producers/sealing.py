"""What the file store hides by its key: who a user is, what a report says, which rewards came.

- A user is a keyed hash.
- A count is masked by AES of its report's id, under one key while a reward may come and under
  another one afterwards: nobody can tell whether the two masked counts of a report differ.
- Rewards lie in blocks of a size that the caller states, sealed by AES-GCM and padded.

Knows no files. Whoever has the key reads everything.
"""

import hashlib
import secrets
from collections.abc import Sequence

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.ciphers.algorithms import AES
from cryptography.hazmat.primitives.ciphers.modes import ECB

from producers.store import keyed_tag

ID_BYTES = 16
COUNT_BYTES = 8
# Of AES-GCM. Random ones: ten blocks a second of eight processes meet in a year with 2**-35.
_NONCE_BYTES = 12
_ENTRY_BYTES = ID_BYTES + 1
# Report ids are random: none is zero but with 2**-128.
_NO_ENTRY = bytes(_ENTRY_BYTES)


class Sealing:
    """A store's key, and all that is done with it."""

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._masks = [self._derived(b"waiting"), self._derived(b"final")]
        self._rewards = AESGCM(self._derived(b"rewards"))
        self.proof = self._derived(b"proof")  # tells the key from others, and nothing of it

    def _derived(self, purpose: bytes) -> bytes:
        return hashlib.blake2b(purpose, key=self._key, digest_size=32, person=b"store key").digest()

    def tag(self, user: str) -> bytes:
        """The user's keyed hash."""
        return keyed_tag(self._key, user)

    def masked(self, ids: bytes, counts: Sequence[int], final: bool) -> bytes:
        """The counts of reports with these ids, 8 bytes each."""
        return (np.array(counts, np.uint64) ^ self._pads(ids, final)).tobytes()

    def unmasked(self, ids: bytes, masked: bytes, final: bool) -> list[int]:
        """The reverse."""
        counts: list[int] = (np.frombuffer(masked, np.uint64) ^ self._pads(ids, final)).tolist()
        return counts

    def _pads(self, ids: bytes, final: bool) -> "np.ndarray[tuple[int], np.dtype[np.uint64]]":
        # ECB of random ids that are all different is a random function of them.
        cipher = Cipher(AES(self._masks[final]), ECB()).encryptor()  # noqa: S305
        return np.frombuffer(cipher.update(ids), np.uint64)[::2]

    def sealed(self, entries: Sequence[tuple[bytes, int]], capacity: int) -> bytes:
        """A block of rewards: its length depends on the capacity only."""
        assert len(entries) <= capacity
        listed = [report_id + bytes([bit]) for report_id, bit in entries]
        listed += [_NO_ENTRY] * (capacity - len(entries))
        nonce = secrets.token_bytes(_NONCE_BYTES)
        return nonce + self._rewards.encrypt(nonce, b"".join(listed), None)

    def opened(self, block: bytes) -> list[tuple[bytes, int]]:
        """The rewards of a block. Raises InvalidTag."""
        text = self._rewards.decrypt(block[:_NONCE_BYTES], block[_NONCE_BYTES:], None)
        entries = [text[i : i + _ENTRY_BYTES] for i in range(0, len(text), _ENTRY_BYTES)]
        return [(entry[:ID_BYTES], entry[-1]) for entry in entries if entry != _NO_ENTRY]
