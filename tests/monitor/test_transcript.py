"""An experiment's sums, read from the topic."""

import json
from typing import Any

import pytest

from stream_app import kafka
from stream_app.local.broker import LocalBroker
from stream_app.monitor import transcript
from stream_app.settings import KafkaSettings


@pytest.mark.kafka
async def test_transcript_from_a_topic(
    broker: LocalBroker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only this experiment's sums; what does not fit is named by its offset and can be read on."""
    settings = KafkaSettings(bootstrap=broker.bootstrap, topic_prefix="pages-transcript")
    await kafka.create_topics(settings, 1, 1)
    async with kafka.producer(settings) as producer:
        for number in range(6):
            key = b"mine" if number % 2 == 0 else b"other"
            await producer.send_and_wait(
                kafka.topic(settings, "sums"), b'{"n":%d}' % number, key=key
            )
    monkeypatch.setattr(transcript, "MAX_LINES", 2)
    reader = transcript.Transcript(settings)

    async def read(start: int | None) -> list[dict[str, Any]]:
        chunks = [chunk async for chunk in reader.lines("mine", start)]
        return [json.loads(line) for line in b"".join(chunks).splitlines()]

    first = await read(None)
    rest = await read(first[-1]["next"])

    assert [{"n": 0}, {"n": 2}] == [line["sum"] for line in first[:-1]]
    assert [{"n": 4}] == [line["sum"] for line in rest]
