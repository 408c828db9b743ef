"""A replay's noise: the same for the same batch and key, so that a resent report never differs.

A live client draws a user's noise once and keeps it; a replay of millions of rows would have to
keep them all. Instead every batch's noise and report ids are streams of SHAKE-256 under one secret
key of 256 bits, drawn once per replay from the operating system and kept in its position file
(as secret as the topic `reports`): nobody without the key can tell them from fresh randomness, and
after an interruption the same rows give the same bytes. Only tests choose the key.
"""

import hashlib
import secrets

import numpy as np
from numpy.typing import NDArray

from producers.replay.log import Floats
from stream_app.core import accounting
from stream_app.core.mechanisms import Binomial, DiscreteLaplace, Mechanism
from stream_app.core.samplers import laplace_table

KEY_BYTES = 32  # 256 bits: the strength of SHAKE-256
# Bytes of the stream made at once: some thousand reports, and the cost of starting a hash vanishes.
# Another value would be another stream: a replay that is interrupted could not go on after it.
_BLOCK = 1 << 15
_ID_BYTES = 16  # of a report's id on the wire


def fresh_key() -> bytes:
    """A key from the operating system."""
    return secrets.token_bytes(KEY_BYTES)


class Stream:
    """Bytes that follow from a key and a purpose, in order."""

    __slots__ = ("_block", "_left", "_seed")

    def __init__(self, key: bytes, purpose: str) -> None:
        assert len(key) == KEY_BYTES
        # The key has a fixed length and the counter is the last 8 bytes: no two inputs are alike.
        self._seed = hashlib.shake_256(key + purpose.encode() + b"\0")
        self._block = 0
        self._left = b""

    def take(self, size: int) -> bytes:
        """The next bytes."""
        pieces = [self._left[:size]]
        missing = size - len(self._left)
        self._left = self._left[size:]
        while missing > 0:
            state = self._seed.copy()
            state.update(self._block.to_bytes(8))
            block = state.digest(_BLOCK)
            self._block += 1
            pieces.append(block[:missing])
            self._left = block[missing:]
            missing = missing - _BLOCK
        return b"".join(pieces)

    def draws(self, count: int) -> NDArray[np.uint64]:
        """64 bits at a time, as `Sampler.draw` reads them."""
        return np.frombuffer(self.take(8 * count), dtype="<u8")


class BatchNoise:
    """Encodes the rewards of one batch in order: the mechanism's own noise, many at once.

    The simple twin is the mechanism's `Sampler.encode` on the same stream, one reward at a time; a
    test compares them. This is 3 times as fast for Laplace noise, 7 to 9 for binomial noise.
    """

    def __init__(self, mechanism: Mechanism, key: bytes, batch_id: str) -> None:
        self._rounding = Stream(key, f"round {batch_id}")
        self._ids = Stream(key, f"id {batch_id}")
        self._stream = Stream(key, f"noise {batch_id}")
        self._mechanism = mechanism
        self._sampler = mechanism.sampler(self._stream.take)
        self._table: NDArray[np.uint64] | None = None
        if isinstance(mechanism, DiscreteLaplace) and mechanism.table_bits == 64:
            promise = mechanism.promise
            table = laplace_table(promise.honest, promise.epsilon, mechanism.clip, 64)
            self._table = np.array(table, dtype=np.uint64)

    def encode(self, rewards: Floats) -> NDArray[np.int64]:
        """Each reward's count of ones: rounded to a bit (MATH 8), plus a share of the noise."""
        return self.rounded(rewards) + self._noise(len(rewards))

    def ids(self, count: int) -> bytes:
        """The ids of the next reports, one after the other."""
        return self._ids.take(_ID_BYTES * count)

    def rounded(self, rewards: Floats) -> NDArray[np.int64]:
        """Each reward as a bit, at random where it lies between 0 and 1; its mean stays."""
        between = (rewards > 0) & (rewards < 1)
        bits = rewards.astype(np.int64)
        if between.any():
            draws = self._rounding.draws(int(between.sum())).tolist()
            bits[between] = [
                draw < int(reward * accounting.ONE)
                for draw, reward in zip(draws, rewards[between].tolist(), strict=True)
            ]
        return bits

    def _noise(self, count: int) -> NDArray[np.int64]:
        mechanism = self._mechanism
        if self._table is not None:
            # As the mechanism's sampler: the number of entries that are at most the draw.
            return np.searchsorted(self._table, self._stream.draws(count), side="right")
        if isinstance(mechanism, Binomial) and mechanism.success_numerator == accounting.HALF:
            # As the mechanism's sampler: the lowest bits of as many draws as are needed.
            drawn = self._stream.take(8 * -(-mechanism.trials // 64) * count)
            rows = np.frombuffer(drawn, dtype=np.uint8).reshape(count, -1)
            fair = np.unpackbits(rows, axis=1, count=mechanism.trials, bitorder="little")
            ones: NDArray[np.int64] = fair.sum(1, dtype=np.int64)
            return ones
        if isinstance(mechanism, Binomial) and mechanism.trials == 1:
            below = self._stream.draws(count) < np.uint64(mechanism.success_numerator)
            return below.astype(np.int64)
        return np.fromiter((self._sampler.noise() for _ in range(count)), np.int64, count)
