from pathlib import Path

import orjson

from producers.replay.match import RowPosition
from producers.replay.memory import Moment
from producers.replay.position import PositionFile, Step, load
from stream_app.core.state import ArmState
from tests.producers.replay.build import KEY


def test_the_file_s_own_names(tmp_path: Path) -> None:
    """A replay goes on after an update: the file's keys are not those of the code of the day."""
    arm = ArmState()
    moment = Moment(9, None, 7, (4, 3), 0, (arm, arm))
    step = Step(RowPosition(12, (4, 3)), 2, {"3.x": (1, 64)}, 9, 1.5)
    kept = PositionFile(tmp_path / "at", "log", "id", KEY, step, [moment])
    kept.save()
    raw = orjson.loads(kept.path.read_bytes())

    assert ["version", "experiment", "log", "ended", "key", "step", "moments"] == list(raw)
    assert {
        "place": {"row": 12, "taken": [4, 3]},
        "phase": 2,
        "batches": {"3.x": [1, 64]},
        "row": 9,
        "time_s": 1.5,
    } == raw["step"]
    assert kept == load(kept.path, "log", "id")
