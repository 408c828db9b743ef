"""Stores that die, and what their files hold. Nothing here is under test."""

import os
from pathlib import Path

from producers.file_store import FileStore


def crash(store: FileStore) -> None:
    """End as a killed process does: the kernel closes and unlocks, nothing is written."""
    store._closing.set()
    store._thread.join()
    store._inboxes = []
    os.close(store._lock._file)


def files(path: Path) -> bytes:
    """All that lies on disk, but for the key."""
    found = sorted(path.parent.glob(f"{path.name}*"))
    return b"".join(each.read_bytes() for each in found if each.suffix != ".key")
