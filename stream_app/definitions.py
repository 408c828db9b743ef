"""Experiment files: TOML and presets in, frozen definitions out, and their form on the wire.

The types in `core.experiment` say what is allowed; this module reads a file, puts the preset under
what is given, and turns a validation error into one line.
"""

import tomllib
from collections.abc import Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import orjson
from pydantic import TypeAdapter, ValidationError

from stream_app.core.experiment import DEFAULT_PRESET, PRESETS, Experiment
from stream_app.errors import ConfigurationError, InvalidInput
from stream_app.settings import describe, read_toml, table

_EXPERIMENT: TypeAdapter[Experiment] = TypeAdapter(Experiment)


def load_experiment(
    path: Path, preset: str | None = None, overrides: Sequence[str] = ()
) -> Experiment:
    """The experiment of a TOML file; `overrides` are KEY=VALUE with dotted keys.

    A preset given here replaces the file's, and with it the file's choices of mechanism,
    calibration, test, schedule and guarantee; the overrides come last.
    """
    raw = read_toml(path)
    agent = table(raw, "agent")
    privacy = table(raw, "privacy")
    if preset is not None:
        for key in ("test", "schedule", "guarantee", "batch_size", "growth"):
            agent.pop(key, None)
        for key in ("mechanism", "calibration"):
            privacy.pop(key, None)
        agent["preset"] = preset
    for override in overrides:
        _set(raw, override)
    return resolve(raw, str(path))


def resolve(raw: Mapping[str, Any], source: str) -> Experiment:
    """A complete definition: the preset's settings under those that are given."""
    agent = table(raw, "agent")
    privacy = table(raw, "privacy")
    name = agent.get("preset", DEFAULT_PRESET)
    if name not in PRESETS:
        raise ConfigurationError(
            f"{source}: agent.preset = {name!r}: must be one of {', '.join(PRESETS)}"
        )
    if "attribution_s" not in raw:
        raise ConfigurationError(
            f"{source}: attribution_s: missing; state how many seconds after it was shown a reward "
            "may come, or 0 if the product reports every user at once; its clients state the same"
        )
    merged = {
        **raw,
        "agent": {"preset": name, **PRESETS[name]["agent"], **agent},
        "privacy": {**PRESETS[name]["privacy"], **privacy},
    }
    try:
        return _EXPERIMENT.validate_json(orjson.dumps(merged, default=str), strict=True)
    except ValidationError as error:
        raise ConfigurationError(f"{source}: {describe(error)}") from None
    except ConfigurationError as error:
        raise ConfigurationError(f"{source}: {error}") from None


def parse_experiment(data: bytes) -> Experiment:
    """A definition from its topic. Raises InvalidInput."""
    try:
        return _EXPERIMENT.validate_json(data, strict=True)
    except ValidationError as error:
        raise InvalidInput(f"experiment: {describe(error)}") from None
    except ConfigurationError as error:
        raise InvalidInput(f"experiment: {error}") from None


def dump_experiment(experiment: Experiment) -> bytes:
    """A definition for its topic: complete, and the same bytes for the same content."""
    return orjson.dumps(
        orjson.loads(_EXPERIMENT.dump_json(experiment)), option=orjson.OPT_SORT_KEYS
    )


def _set(raw: dict[str, Any], override: str) -> None:
    key, separator, text = override.partition("=")
    *tables, last = key.strip().split(".")
    if not separator or not last:
        raise ConfigurationError(f"--set {override!r}: must be KEY=VALUE, as in agent.growth=2")
    try:
        value = tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        value = text.strip()
    target = raw
    for name in tables:
        target = table(target, name)
    target[last] = value


def decimal(setting: str, text: str) -> Decimal:
    """A number from the command line. Raises ConfigurationError."""
    try:
        value = Decimal(text)
    except ArithmeticError:
        value = Decimal("nan")
    if not value.is_finite():
        raise ConfigurationError(f"{setting} = {text!r}: must be a number such as 0.5")
    return value
