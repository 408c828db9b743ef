import gzip
import json
from pathlib import Path

import pytest

from stream_app.errors import InvalidInput
from tests.producers.replay.build import log, read, write, written


@pytest.mark.parametrize("kind", ["csv.gz", "csv.zst", "jsonl.gz", "parquet"])
def test_a_truncated_file_is_refused(tmp_path: Path, kind: str) -> None:
    """However it is cut, and never taken for a shorter log."""
    path = tmp_path / f"big.{kind}"
    rows = [("abc"[i % 3], i % 2, "x" * (i % 50)) for i in range(20_000)]
    form = kind.partition(".")[0]
    whole = written(tmp_path, kind).with_name(f"log.{form}")
    if form == "csv":
        write(whole, ("arm", "reward", "x"), rows)
    elif form == "jsonl":
        whole.write_text("\n".join(json.dumps({"arm": a, "reward": r}) for a, r, _ in rows))
    content = whole.read_bytes()
    if kind.endswith("gz"):
        content = gzip.compress(content)
    elif kind.endswith("zst"):
        import zstandard

        content = zstandard.ZstdCompressor().compress(content)
    for share in (0.3, 0.9):
        path.write_bytes(content[: int(len(content) * share)])
        with pytest.raises(InvalidInput, match=r"big\..*: truncated or damaged"):
            read(log(path))
