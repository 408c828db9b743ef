"""What an issuer must remember: who had a token for which experiment, and for which request.

A user gets one signature for each experiment, ever. An answer can be lost on its way, so the same
request may be signed again (the signature is the same, so nothing is gained by it); another one may
not. So a store keeps a hash of the request with the user. A request is blinded: it says nothing
about the token that comes of it, and neither does its hash.

A product with a database of its own implements `TokenStore` on it: a unique key on (experiment,
user), an insert that does nothing on conflict, and then a look at the request that stands there.
"""

import contextlib
import hashlib
import os
import secrets
import sqlite3
import threading
from pathlib import Path
from typing import Protocol

from stream_app.errors import ConfigurationError, Unavailable

# Of a keyed hash: with 16 bytes, 10^9 users meet by chance with probability below 10^-20.
_TAG_BYTES = 16
_KEY_BYTES = 32
# How long a process waits for another one's write; a write takes milliseconds.
_BUSY_S = 10.0
_TABLES = """
CREATE TABLE IF NOT EXISTS claims (
    tag BLOB PRIMARY KEY, request BLOB NOT NULL
) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS made_with (proof BLOB PRIMARY KEY) WITHOUT ROWID;
"""


class TokenStore(Protocol):
    """An issuer's memory. Calls may come from several threads, and each may wait for a disk."""

    def claim(self, experiment: str, user: str, request: bytes) -> bool:
        """Whether the user may have this request signed: the first one, or the first one again.

        Atomic: of two different requests at the same time, one gets False. Durable once it
        returns True. `request` is a hash of the blinded message, 32 bytes.
        """


class MemoryTokenStore:
    """A store that lasts as long as its process: for tests and demonstrations."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._claims: dict[tuple[str, str], bytes] = {}

    def claim(self, experiment: str, user: str, request: bytes) -> bool:
        """Whether the user may have this request signed."""
        with self._lock:
            return self._claims.setdefault((experiment, user), request) == request


class FileTokenStore:
    """A sqlite file for all processes of one machine; no name of a user is in it.

    A row is a keyed hash of experiment and user, so that not even two experiments of one user can
    be brought together. The key lies in a file of its own, readable for its owner only: whoever
    gets a copy of the database alone cannot look for a user by trying names. Back up both, apart.
    """

    def __init__(self, path: Path | str, key_path: Path | str | None = None) -> None:
        self._path = Path(path)
        beside = self._path.with_name(f"{self._path.name}.key")
        self._key_path = beside if key_path is None else Path(key_path)
        self._lock = threading.Lock()
        self._key = self._load_key()
        # One for each process that makes a claim: sqlite's connections do not survive a fork, and
        # a child may not even close its parent's.
        self._databases: dict[int, sqlite3.Connection] = {}
        # Complaints come now, and not with the first user.
        self._open().close()

    def claim(self, experiment: str, user: str, request: bytes) -> bool:
        """Whether the user may have this request signed."""
        # An experiment's name has no zero in it, so no two pairs give the same text.
        named = f"{experiment}\0{user}".encode("utf-8", "surrogatepass")
        tag = hashlib.blake2b(named, digest_size=_TAG_BYTES, key=self._key).digest()
        try:
            with self._lock:
                database = self._mine()
                database.execute("INSERT OR IGNORE INTO claims VALUES (?, ?)", (tag, request))
                # A row never changes, so this needs no transaction with the line above.
                found = database.execute("SELECT request FROM claims WHERE tag = ?", (tag,))
                stored: tuple[bytes] = found.fetchone()
        except sqlite3.Error as error:
            raise Unavailable(f"{self._path}: cannot be written: {error}") from None
        return stored[0] == request

    def close(self) -> None:
        """Close this process's connection; the next claim opens it again."""
        with self._lock:
            database = self._databases.pop(os.getpid(), None)
            if database is not None:
                database.close()

    def _mine(self) -> sqlite3.Connection:
        process = os.getpid()
        if process not in self._databases:
            self._databases[process] = self._open()
        return self._databases[process]

    def _open(self) -> sqlite3.Connection:
        try:
            # The file exists before sqlite opens it, so that it has the mode that we want.
            os.close(os.open(self._path, os.O_RDWR | os.O_CREAT, 0o600))
            database = sqlite3.connect(
                self._path, timeout=_BUSY_S, isolation_level=None, check_same_thread=False
            )
            database.execute("PRAGMA journal_mode = WAL")
            # A claim that a power failure undoes is a second token for somebody.
            database.execute("PRAGMA synchronous = FULL")
            database.executescript(_TABLES)
        except sqlite3.OperationalError as error:
            raise Unavailable(f"{self._path}: cannot be opened: {error}") from None
        except sqlite3.DatabaseError as error:
            raise ConfigurationError(
                f"{self._path}: not a store of tokens: {error}; restore it from a copy"
            ) from None
        except OSError as error:
            raise ConfigurationError(
                f"{self._path}: cannot be opened: {error.strerror}; check folder and rights"
            ) from None
        self._check_key(database)
        return database

    def _check_key(self, database: sqlite3.Connection) -> None:
        """With another key every user would be new, and get a second token."""
        proof = hashlib.blake2b(b"made with", digest_size=_TAG_BYTES, key=self._key).digest()
        database.execute(
            "INSERT INTO made_with SELECT ? WHERE NOT EXISTS (SELECT 1 FROM made_with)", (proof,)
        )
        if database.execute("SELECT proof FROM made_with").fetchall() != [(proof,)]:
            database.close()
            raise ConfigurationError(
                f"{self._key_path}: not the key that {self._path} was made with; restore both from "
                "copies of one time (with another key, users could get a second token)"
            )

    def _load_key(self) -> bytes:
        # In this order: a process that starts beside us makes the key before the database.
        used = self._path.exists()
        if used and not self._key_path.exists():
            raise ConfigurationError(
                f"{self._key_path}: missing, but {self._path} was made with it; restore it from a "
                "copy (with another key, users could get a second token)"
            )
        try:
            with contextlib.suppress(FileExistsError):
                self._make_key()
            key = self._key_path.read_bytes()
        except OSError as error:
            raise ConfigurationError(
                f"{self._key_path}: cannot be opened: {error.strerror}; check folder and rights"
            ) from None
        if len(key) != _KEY_BYTES:
            raise ConfigurationError(
                f"{self._key_path}: has {len(key)} bytes, not {_KEY_BYTES}; restore it from a copy"
            )
        return key

    def _make_key(self) -> None:
        """Whole or not at all, whichever process comes first: a link never overwrites."""
        if self._key_path.exists():
            return
        draft = self._key_path.with_name(f"{self._key_path.name}.{secrets.token_hex(8)}")
        descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            with open(descriptor, "wb") as file:
                file.write(secrets.token_bytes(_KEY_BYTES))
                file.flush()
                os.fsync(file.fileno())
            os.link(draft, self._key_path)
        finally:
            draft.unlink()
