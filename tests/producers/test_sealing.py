"""What the store's key hides: lengths and bytes tell nothing of what is sealed."""

import pytest
from cryptography.exceptions import InvalidTag

from producers.sealing import Sealing

IDS = [bytes([number] * 16) for number in range(1, 6)]
KEY = bytes(range(32))


def test_counts_come_back() -> None:
    """Under the key of their kind only."""
    sealing = Sealing(KEY)
    ids = b"".join(IDS)
    masked = sealing.masked(ids, [0, 1, 53, 1 << 40, 7], final=False)

    assert sealing.unmasked(ids, masked, final=False) == [0, 1, 53, 1 << 40, 7]
    assert sealing.unmasked(ids, masked, final=True) != [0, 1, 53, 1 << 40, 7]
    assert Sealing(bytes(32)).unmasked(ids, masked, final=False) != [0, 1, 53, 1 << 40, 7]


def test_one_report_is_masked_alike_in_any_company() -> None:
    """By its own id only."""
    sealing = Sealing(KEY)
    masked = sealing.masked(b"".join(IDS), [5] * 5, final=True)

    assert len({masked[i : i + 8] for i in range(0, 40, 8)}) == 5
    assert sealing.masked(IDS[3], [5], final=True) == masked[24:32]


def test_blocks_have_one_length_and_no_two_are_alike() -> None:
    """Full or empty."""
    sealing = Sealing(KEY)
    entries = [(report_id, number % 2) for number, report_id in enumerate(IDS)]
    blocks = [sealing.sealed(entries[:count], 5) for count in range(6)]

    assert len({len(block) for block in blocks}) == 1
    assert sealing.sealed([], 5) != blocks[0]
    assert [sealing.opened(block) for block in blocks] == [entries[:count] for count in range(6)]


def test_a_block_of_another_key_is_refused() -> None:
    """And so is one that was changed."""
    block = Sealing(KEY).sealed([(IDS[0], 1)], 2)

    for key, data in ((bytes(32), block), (KEY, block[:-1] + bytes([block[-1] ^ 1]))):
        with pytest.raises(InvalidTag):
            Sealing(key).opened(data)


def test_users_are_keyed_hashes() -> None:
    """Another key, another hash; also of text that is no UTF-8."""
    assert Sealing(KEY).tag("ada") == Sealing(KEY).tag("ada") != Sealing(bytes(32)).tag("ada")
    assert len(Sealing(KEY).tag("\ud800")) == 16
