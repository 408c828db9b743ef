"""Whether a process still lives: a lock file that the kernel releases when it dies."""

import fcntl
import os
import secrets
from pathlib import Path

from stream_app.errors import ConfigurationError


class ProcessLock:
    """A file beside a store, locked for as long as its process uses the store."""

    def __init__(self, store: Path) -> None:
        self.name = f"{store.name}.{secrets.token_hex(8)}.lock"
        self._path = store.with_name(self.name)
        try:
            self._file = os.open(
                self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600
            )
        except OSError as error:
            raise ConfigurationError(
                f"{self._path}: cannot be made: {error.strerror}; check folder and rights"
            ) from None
        fcntl.flock(self._file, fcntl.LOCK_EX)

    def release(self) -> None:
        """The process no longer uses the store."""
        self._path.unlink(missing_ok=True)
        os.close(self._file)

    def forget(self) -> None:
        """In a forked child: the lock is the parent's, and must not outlive it."""
        os.close(self._file)


def is_dead(store: Path, name: str) -> bool:
    """Whether the process that made this lock has ended."""
    try:
        file = os.open(store.with_name(name), os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(file)
    return True


def remove(store: Path, name: str) -> None:
    """Tidy up after a process that has ended."""
    store.with_name(name).unlink(missing_ok=True)
