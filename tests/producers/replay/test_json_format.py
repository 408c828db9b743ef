import json
from pathlib import Path

from producers.replay.json_format import DSJSON
from tests.producers.replay.build import log, read


def test_dsjson(tmp_path: Path) -> None:
    """Action n is the n-th arm, the reward minus the cost; the rest is counted."""
    event = {"_label_cost": -1.0, "_label_probability": 0.8, "_label_Action": 2, "a": [2, 1]}
    lines = [
        {**event, "p": [0.8, 0.2], "Timestamp": "2024-01-01T00:00:00.0000000Z"},
        {**event, "_label_cost": 0, "_label_Action": 1, "Timestamp": "2024-01-01T00:00:01Z"},
        {**event, "_skipLearn": True, "Timestamp": "2024-01-01T00:00:02Z"},
        {"RewardValue": 1, "EventId": "x"},
    ]
    path = tmp_path / "log.dsjson"
    path.write_text("\n".join(json.dumps(line) for line in lines))
    found = log(path, form=DSJSON)
    arms, rewards, times, chances = read(found)

    assert ([1, 0], [1, 0], [0.8, 0.8]) == (arms, rewards, chances)
    assert 1704067200 == times[0]
    assert 2 == found.skipped["not a decision"].rows
