"""Bad records by a seeded generator: bytes, JSON, and records that are almost right."""

import json
import random
import struct
from collections import Counter
from typing import Any

from aiokafka.record.default_records import DefaultRecordBatchBuilder
from aiokafka.record.util import calc_crc32c

# The broker takes 1 048 588 bytes; the key, the headers and what is around them count as well.
_LARGEST = 1_044_000
_ODD: tuple[Any, ...] = (
    None, True, False, 0, -1, 1, 2**31, 2**53, 2**63, 2**64, -(2**63), 10**400, 1e308, -0.0,
    float("nan"), float("inf"), "", " ", "\x00", "\ud800", "\u202e", "x" * 5_000, "1.", ".", "-1.x",
    "9" * 400 + ".x", "NaN", "1e9", "0x1f", [], {}, [[]], {"": None}, [None] * 2_000,
)  # fmt: skip
_KINDS = {
    "noise": 20,
    "empty": 4,
    "cut": 12,
    "flipped": 20,
    "spliced": 8,
    "odd value": 24,
    "odd shape": 8,
    "deep": 2,
    "number": 2,
}


class Inputs:
    """All that is drawn comes from the seed."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.kinds: Counter[str] = Counter()

    def value(self, sample: bytes) -> bytes | None:
        """Something that a good record of a topic was turned into, or that never was one."""
        (kind,) = self.chance.choices(list(_KINDS), list(_KINDS.values()))
        if self.chance.random() < 0.0004:
            kind = "giant"
        self.kinds[kind] += 1
        chance = self.chance
        cut = self.chance.randrange(len(sample) + 1)
        match kind:
            case "noise":
                return chance.randbytes(chance.randrange(300))
            case "empty":
                return chance.choice([None, b"", b" ", b"{}", b"[]", b"null", b"0", b'""'])
            case "cut":
                return sample[:cut]
            case "flipped":
                changed = bytearray(sample)
                for _ in range(chance.randint(1, 4)):
                    changed[chance.randrange(len(changed))] = chance.randrange(256)
                return bytes(changed)
            case "spliced":
                return sample[:cut] + chance.randbytes(chance.randrange(9)) + sample[cut // 2 :]
            case "odd value" | "odd shape":
                return self._odd(json.loads(sample), replace=kind == "odd value")
            case "deep":
                opening = chance.choice([b"[", b'{"batch":', b'{"terms":[', b'[{"a":'])
                return opening * chance.choice([10, 500, 1_100, 20_000])
            case "number":
                digits = chance.choice(b"0159").to_bytes() * chance.choice([30, 400, 5_000])
                return b'{"batch":%b,"id":%b,"ones":-%b.%be%b}' % ((digits,) * 5)
            case _:
                size = chance.choice([100_000, _LARGEST])
                return chance.choice([b"[", b" ", b"1", b"\xff"]) * size

    def _odd(self, raw: Any, *, replace: bool) -> bytes:
        """One value somewhere replaced, or one key taken away, doubled or added."""
        place = raw
        key = self.chance.choice(list(raw))
        while isinstance(place[key], dict | list) and place[key] and self.chance.random() < 0.8:
            place = place[key]
            key = self.chance.choice(list(place) if isinstance(place, dict) else range(len(place)))
        if replace:
            place[key] = self.chance.choice(_ODD)
        elif isinstance(place, list):
            place.append(self.chance.choice(_ODD))
        elif self.chance.random() < 0.5:
            del place[key]
        else:
            place[self.chance.choice(["", "extra", "version", "batch"])] = self.chance.choice(_ODD)
        return json.dumps(raw).encode()

    def key(self, name: bytes, *, null: bool) -> bytes | None:
        """Often the right one, else nonsense; never a name that a value might tell."""
        if self.chance.random() < 0.5:
            return name
        keys = (b"\x01", b"other", name + b"\0", self.chance.randbytes(8), b"k" * 3_000, b"\xff")
        return None if null and self.chance.random() < 0.3 else self.chance.choice(keys)

    def headers(self) -> list[tuple[str, bytes]]:
        """Mostly none."""
        if self.chance.random() < 0.9:
            return []
        names = ("", "x", "\x00", "é" * 50, "shufflebandit")
        return [(self.chance.choice(names), self.chance.randbytes(9)) for _ in range(3)]


def unparsable(name: bytes, value: bytes) -> bytes:
    """A batch of three records that Kafka takes and aiokafka cannot read from the second one on."""
    builder = DefaultRecordBatchBuilder(2, 0, 0, -1, -1, -1, 1 << 20)
    for number in range(3):
        headers = [("HEAD", b"")] if number == 1 else []
        builder.append(number, 1_700_000_000_000, name, value, headers)
    whole = bytearray(bytes(builder.build()).replace(b"HEAD", b"\xff\xfe\xfd\xfc"))
    struct.pack_into(">I", whole, 17, calc_crc32c(bytes(whole[21:])))
    return bytes(whole)
