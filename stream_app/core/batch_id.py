"""The grammar of a batch id: `<sequence>.<digest>`. Whoever writes or reads one does it by this.

The digest is the SHA-256 of the terms' canonical form, base64url without padding: an id names its
terms, so that nobody can keep the one and change the others (producers/PROTOCOL.md, "Terms"). The
sequence number counts the batches of an experiment, and is readable without the terms.
"""

import base64
import hashlib
import re
from typing import NamedTuple

# A report, of fixed length, has room for so many; a horizon of 1e12 users cannot have more batches.
SEQUENCE_DIGITS = 15
# 256 bits in base64, six a character, without the padding that says nothing.
DIGEST_CHARACTERS = 43

SEQUENCE_PATTERN = rf"[0-9]{{1,{SEQUENCE_DIGITS}}}"
PATTERN = rf"{SEQUENCE_PATTERN}\.[A-Za-z0-9_-]{{{DIGEST_CHARACTERS}}}"

_WHOLE = re.compile(PATTERN)
_NUMBERED = re.compile(rf"({SEQUENCE_PATTERN})\..+", re.DOTALL)


class BatchId(NamedTuple):
    """An id's two parts."""

    sequence: int
    digest: str


def format_batch_id(sequence: int, canonical: bytes) -> str:
    """The id of the terms with this canonical form."""
    digest = hashlib.sha256(canonical).digest()
    return f"{sequence}.{base64.urlsafe_b64encode(digest).decode().rstrip('=')}"


def parse_batch_id(text: str) -> BatchId | None:
    """The parts of an id from a stranger; None if it is not of the grammar."""
    if not _WHOLE.fullmatch(text):
        return None
    sequence, _, digest = text.partition(".")
    return BatchId(int(sequence), digest)


def stated_sequence(text: str) -> int | None:
    """The number before the dot of an id from a stranger, whatever follows it; None without one."""
    found = _NUMBERED.fullmatch(text)
    return int(found[1]) if found else None


def sequence_of(batch_id: str) -> int:
    """The sequence number of an id that was checked or came from the agent; else ValueError.

    Terms may number batches up to 2**53 - 1, one digit more than a report has room for.
    """
    return int(batch_id.partition(".")[0])
