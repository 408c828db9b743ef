"""Who had a token: atomic, durable, over processes, without a name of anybody."""

import multiprocessing
import sqlite3
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from producers.token_store import FileTokenStore, MemoryTokenStore, TokenStore
from stream_app.errors import ConfigurationError, Unavailable

FIRST = b"\1" * 32
SECOND = b"\2" * 32
Make = Callable[[], TokenStore]


@pytest.fixture(params=["memory", "file"])
def make(request: pytest.FixtureRequest, tmp_path: Path) -> Make:
    if request.param == "memory":
        return MemoryTokenStore
    return lambda: FileTokenStore(tmp_path / "tokens.sqlite")


def test_a_user_has_one_request_per_experiment(make: Make) -> None:
    """The same again, another never."""
    store = make()

    assert store.claim("banners", "ann", FIRST)
    assert store.claim("banners", "ann", FIRST)
    assert not store.claim("banners", "ann", SECOND)
    assert store.claim("banners", "ann", FIRST)
    assert store.claim("footers", "ann", SECOND)
    assert store.claim("banners", "bob", SECOND)
    assert store.claim("banners", "\ud800", SECOND)


def test_of_many_at_once_one_wins(make: Make) -> None:
    """Different requests of one user in many threads."""
    store = make()
    requests = [bytes([number]) * 32 for number in range(64)]
    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(lambda request: store.claim("banners", "ann", request), requests))

    assert 1 == sum(won)


def _claims(path: Path, number: int) -> list[int]:
    store = FileTokenStore(path)
    won = [n for n in range(50) if store.claim("b", f"user {n}", bytes([number]) * 32)]
    store.close()
    return won


def test_processes_share_a_file(tmp_path: Path) -> None:
    """All of them start at once, make the file together, and no user gets two."""
    path = tmp_path / "tokens.sqlite"
    with multiprocessing.get_context("spawn").Pool(4) as pool:
        found = pool.starmap(_claims, [(path, n) for n in range(4)])

    assert sorted(n for won in found for n in won) == list(range(50))


def _child(store: FileTokenStore) -> None:
    assert not store.claim("banners", "ann", SECOND)
    assert store.claim("banners", "bob", SECOND)


def test_a_forked_process_opens_the_file_anew(tmp_path: Path) -> None:
    """As servers do that load the application before they fork."""
    store = FileTokenStore(tmp_path / "tokens.sqlite")
    store.claim("banners", "ann", FIRST)
    child = multiprocessing.get_context("fork").Process(target=_child, args=(store,))
    child.start()
    child.join()

    assert 0 == child.exitcode
    assert not store.claim("banners", "bob", FIRST)


def test_it_outlives_the_process_and_holds_no_names(tmp_path: Path) -> None:
    """Only keyed hashes are in the file; the key is outside it, for its owner only."""
    path = tmp_path / "tokens.sqlite"
    store = FileTokenStore(path)
    store.claim("banners", "ann@example.org", FIRST)
    store.claim("footers", "ann@example.org", FIRST)
    store.close()
    content = path.read_bytes()
    tags = sqlite3.connect(path).execute("SELECT tag FROM claims").fetchall()

    assert b"ann" not in content
    assert b"banners" not in content
    assert (tmp_path / "tokens.sqlite.key").read_bytes() not in content
    assert 2 == len(set(tags))
    assert {0o600} == {file.stat().st_mode & 0o777 for file in tmp_path.iterdir()}
    assert not FileTokenStore(path).claim("banners", "ann@example.org", SECOND)


def test_another_key_is_refused(tmp_path: Path) -> None:
    """With it, everybody would be new: lost, replaced, cut short."""
    path = tmp_path / "tokens.sqlite"
    key = tmp_path / "secrets" / "key"
    key.parent.mkdir()
    FileTokenStore(path, key).close()
    kept = key.read_bytes()

    key.unlink()
    with pytest.raises(ConfigurationError, match="key: missing"):
        FileTokenStore(path, key)
    assert not key.exists()
    key.write_bytes(bytes(32))
    with pytest.raises(ConfigurationError, match="not the key that"):
        FileTokenStore(path, key)
    key.write_bytes(kept[:31])
    with pytest.raises(ConfigurationError, match="has 31 bytes, not 32"):
        FileTokenStore(path, key)
    key.write_bytes(kept)
    assert FileTokenStore(path, key).claim("banners", "ann", FIRST)


def test_unusable_files_are_one_line(tmp_path: Path) -> None:
    """No folder, no database."""
    with pytest.raises(ConfigurationError, match="cannot be opened: No such file"):
        FileTokenStore(tmp_path / "none" / "tokens.sqlite")
    junk = tmp_path / "junk"
    (tmp_path / "junk.key").write_bytes(bytes(32))
    junk.write_bytes(b"not a database " * 100)
    with pytest.raises(ConfigurationError, match="not a store of tokens"):
        FileTokenStore(junk)


def test_a_claim_that_cannot_be_kept_is_not_granted(tmp_path: Path) -> None:
    """It raises, and so nothing is signed."""
    path = tmp_path / "tokens.sqlite"
    store = FileTokenStore(path)
    store.claim("banners", "ann", FIRST)
    with sqlite3.connect(path) as database:
        database.execute("DROP TABLE claims")
    with pytest.raises(Unavailable, match="cannot be written"):
        store.claim("banners", "bob", FIRST)
