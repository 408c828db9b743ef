import os
from collections.abc import Iterator

import pytest

from stream_app.core import ids

pytest_plugins = ["tests.support.chromium_fixtures", "tests.support.kafka_fixtures"]
# Workers of several tests share a machine: no endpoint unless a test asks for one.
os.environ["SHUFFLEBANDIT_METRICS_PORT"] = "0"


@pytest.fixture(scope="module")
def early_arrays() -> Iterator[None]:
    """Sets of ids go into arrays from the third on, so that small windows have them too."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ids, "_SMALL", 2)
        yield
