"""The browser module under Node: vectors and behaviour."""

import os
import shutil
import subprocess
from pathlib import Path

import orjson
import pytest

from producers.web import make_vectors

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def node() -> str:
    found = shutil.which("node")
    if found is None:
        if os.environ.get("CI") == "true":
            pytest.fail("node is missing", pytrace=False)
        pytest.skip("node is missing")
    return found


def test_the_vectors_are_current() -> None:
    """The file is what the code makes now; floats may differ in their last digits elsewhere."""
    stored = orjson.loads(make_vectors.FILE.read_bytes())
    made = orjson.loads(make_vectors.dump())
    for before, now in zip(stored["terms"], made["terms"], strict=True):
        assert before.pop("certified_delta") == pytest.approx(now.pop("certified_delta"), rel=1e-12)

    assert stored == made, "run: python -m producers.web.make_vectors"


def test_python_agrees_with_the_vectors() -> None:
    """It accepts what is to be accepted and refuses what is to be refused."""
    stored = orjson.loads(make_vectors.FILE.read_bytes())

    assert all(make_vectors.accepts(one["id"], one["terms"]) for one in stored["terms"])
    assert not any(make_vectors.accepts(one["batch"], one["terms"]) for one in stored["refused"])


def test_the_module(node: str) -> None:
    """All of tests/web/*.test.mjs."""
    files = sorted(map(str, HERE.glob("*.test.mjs")))
    done = subprocess.run(
        [node, "--test", *files], capture_output=True, text=True, check=False, timeout=120
    )

    assert done.returncode == 0, done.stdout[-8000:]
    assert "# pass 0" not in done.stdout
