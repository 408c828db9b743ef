"""Records of `reports`: one user's noisy answer. For the trusted side only."""

import orjson

# Every report has this length, whatever it says: the longest has 129 characters (15 digits of
# sequence, 10 digits of ones), and 136 is the next multiple of 8.
REPORT_BYTES = 136
# Nothing longer is even parsed: room for another client's spaces, not for an attacker's megabyte.
MAX_REPORT_BYTES = 512


def encode_report(batch_id: str, report_id: bytes, ones: int) -> bytes:
    """One report, padded with spaces so that all have the same length."""
    body = f'{{"batch":"{batch_id}","id":"{report_id.hex()}","ones":{ones}}}'
    return body.encode().ljust(REPORT_BYTES)


def decode_report(value: bytes) -> tuple[str, bytes, int]:
    """Batch id, report id, count of ones; ValueError, KeyError or TypeError if malformed.

    The hot path: the shuffle stage counts and drops, so no exception is translated here.
    """
    raw = orjson.loads(value)
    batch_id = raw["batch"]
    report_id = bytes.fromhex(raw["id"])
    ones = raw["ones"]
    if len(report_id) != 16 or type(ones) is not int or type(batch_id) is not str or len(raw) != 3:
        raise ValueError
    return batch_id, report_id, ones
