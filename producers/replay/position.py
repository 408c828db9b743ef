"""Where a replay through Kafka stands: what lets the same command go on after an interruption.

The file is written before a step's first report is sent, and says where in the log the step began.
Going on means to send the step's reports again: the key in the file gives each row the same id and
noise as before, so the shuffle stage drops those that it has. The file is as secret as `reports`,
for its key; the key is removed from it at the end.
"""

import dataclasses
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import orjson

from producers.replay import match
from producers.replay.memory import Moment
from producers.replay.noise import KEY_BYTES, fresh_key
from stream_app.core.state import ArmState
from stream_app.errors import ConfigurationError

_VERSION = 1  # of the file's content; raised when an older version could not read it


@dataclass(frozen=True, slots=True)
class Step:
    """Batches that began together."""

    begins: match.RowPosition
    phase: int  # of the agent, before
    batches: dict[str, tuple[int, int]]  # id: arm, size
    # The last row used before, and its time: what a report says of the steps before.
    row: int = 0
    time_s: float | None = None


@dataclass(slots=True)
class PositionFile:
    """A replay's memory; `step` is None before its first report."""

    path: Path
    experiment: str
    log: str  # tells this log and these options from others
    key: bytes = field(default_factory=fresh_key, repr=False)
    step: Step | None = None
    moments: list[Moment] = field(default_factory=list)

    def save(self, *, ended: bool = False) -> None:
        """Make it durable: all of the new content, or the old."""
        step = self.step
        content: dict[str, Any] = {
            "version": _VERSION,
            "experiment": self.experiment,
            "log": self.log,
            "ended": ended,
            "key": "" if ended else self.key.hex(),
            "step": None if step is None or ended else _raw_step(step),
            "moments": [] if ended else [dataclasses.asdict(moment) for moment in self.moments],
        }
        fresh = self.path.with_name(f"{self.path.name}.new")
        try:
            with open(fresh, "wb", opener=_private) as file:
                file.write(orjson.dumps(content))
                file.flush()
                os.fsync(file.fileno())
            fresh.replace(self.path)
        except OSError as error:
            raise ConfigurationError(
                f"--position {self.path}: cannot be written: {error.strerror}"
            ) from None


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def load(path: Path, experiment: str, log: str) -> PositionFile:
    """The position of an interrupted replay, or that of a new one. Raises ConfigurationError."""
    try:
        raw = orjson.loads(path.read_bytes())
    except FileNotFoundError:
        return PositionFile(path, experiment, log)
    except (OSError, orjson.JSONDecodeError) as error:
        raise ConfigurationError(f"--position {path}: cannot be read: {error}") from None
    try:
        if raw["version"] != _VERSION:
            raise ConfigurationError(f"--position {path}: written by another version")
        if raw["experiment"] != experiment or raw["log"] != log:
            raise ConfigurationError(
                f"--position {path}: belongs to another log, experiment or mode; give the same "
                "ones as before, or another --position and another experiment name"
            )
        if raw["ended"]:
            raise ConfigurationError(
                f"--position {path}: this replay has ended; to play it again use another "
                "experiment name, and another --position or none"
            )
        key = bytes.fromhex(raw["key"])
        step = _step(raw["step"]) if raw["step"] is not None else None
        moments = [_moment(moment) for moment in raw["moments"]]
    except (KeyError, TypeError, ValueError) as error:
        raise ConfigurationError(f"--position {path}: not a position file: {error}") from None
    if len(key) != KEY_BYTES:
        raise ConfigurationError(f"--position {path}: not a position file: its key is cut")
    return PositionFile(path, experiment, log, key, step, moments)


def _raw_step(step: Step) -> dict[str, Any]:
    raw = dataclasses.asdict(step)
    # The file's own name for it, which older versions wrote and read.
    return {"place": raw.pop("begins"), **raw}


def _step(raw: dict[str, Any]) -> Step:
    begins = match.RowPosition(raw["place"]["row"], tuple(raw["place"]["taken"]))
    batches = {name: (arm, size) for name, (arm, size) in raw["batches"].items()}
    return Step(begins, raw["phase"], batches, raw["row"], raw["time_s"])


def _moment(raw: dict[str, Any]) -> Moment:
    arms = tuple(ArmState(**arm) for arm in raw["arms"])
    taken = tuple(raw["taken"])
    return Moment(raw["row"], raw["time_s"], raw["users"], taken, raw["epoch"], arms)
