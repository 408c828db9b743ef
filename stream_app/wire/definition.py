"""Records of `experiments`: what the operator asks for."""

from dataclasses import dataclass

from stream_app.core.experiment import Experiment
from stream_app.definitions import dump_experiment, parse_experiment
from stream_app.errors import InvalidInput
from stream_app.wire.envelope import VERSION, dump_json, json_object


@dataclass(frozen=True, slots=True)
class Definition:
    """A record of `experiments`: what the operator asks for."""

    experiment: Experiment
    stopped: bool = False

    def encode(self) -> bytes:
        """The record's value."""
        return b'{"definition":%b,"stopped":%b,"version":%d}' % (
            dump_experiment(self.experiment),
            b"true" if self.stopped else b"false",
            VERSION,
        )


def decode_definition(value: bytes | None) -> Definition:
    """A record of `experiments`. Raises InvalidInput."""
    raw = json_object(value, "definition", "stopped")
    if type(raw["stopped"]) is not bool:
        raise InvalidInput("stopped: must be true or false")
    return Definition(parse_experiment(dump_json(raw["definition"])), raw["stopped"])
