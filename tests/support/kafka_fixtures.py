"""The one local Kafka that all tests of a run share."""

import os
from collections.abc import Iterator

import pytest

from stream_app.errors import Unavailable
from stream_app.local.broker import LocalBroker
from stream_app.local.kafka_jars import fetch, find_java


@pytest.fixture(scope="session")
def broker() -> Iterator[LocalBroker]:
    """A running broker; tests name their topics so that they do not meet.

    Only what is missing on the machine skips; a broker that does not start is an error.
    """
    try:
        find_java()
        fetch()
    except Unavailable as missing:
        if os.environ.get("CI") == "true":
            pytest.fail(str(missing), pytrace=False)
        pytest.skip(str(missing))
    with LocalBroker() as running:
        yield running
