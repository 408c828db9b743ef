"""The registry of log formats: a new one is a value of its own, one line here, and its test."""

from producers.replay.csv_format import CSV, OBD
from producers.replay.files import Source, opened
from producers.replay.json_format import DSJSON, JSONL
from producers.replay.log_format import LogFormat
from producers.replay.parquet_format import PARQUET

# A dialect stands behind its format. Messages list endings in this order.
FORMATS: tuple[LogFormat, ...] = (
    CSV,
    OBD,
    JSONL,
    DSJSON,
    PARQUET,
)

AUTO = "auto"  # the command line's word for a format that is detected, file by file
# A name or ending that two formats claim would be the later one's: a test holds that none is.
_BY_NAME = {form.name: form for form in FORMATS}
_BY_ENDING = {ending: form for form in FORMATS for ending in form.endings}
ENDINGS = tuple(_BY_ENDING)
# A log of a dialect can be read as its general format, with options for its columns.
_GENERAL = [form for form in FORMATS if not form.dialect]
_DIALECTS = [form for form in FORMATS if form.dialect]
# General formats first: most logs are one of these.
CHOICES = (AUTO, *(form.name for form in (*_GENERAL, *_DIALECTS)))
# Longer than any format's first bytes, and than the blank lines that may stand before.
_HEAD_BYTES = 64


def named(choice: str) -> LogFormat | None:
    """The format of a choice of the command line; None to detect it."""
    return None if choice == AUTO else _BY_NAME[choice]


def detect(source: Source, asked: LogFormat | None) -> LogFormat:
    """The format: as asked, by the file's ending, else by its first bytes."""
    if asked is not None:
        return asked
    known = _BY_ENDING.get(source.suffix)
    if known is not None:
        return known
    with opened(source) as stream:
        head = stream.read(_HEAD_BYTES).lstrip()
    begun = {
        form.first_bytes: form
        for form in FORMATS
        if form.first_bytes is not None and head.startswith(form.first_bytes)
    }
    return begun[max(begun, key=len)]


def choices_help() -> str:
    """What `--help` says of the choices."""
    dialects = [f"{form.name}: {form.description}." for form in _DIALECTS]
    return " ".join(["auto: by the file's ending or first bytes.", *dialects])


def listed() -> str:
    """The general formats, in a sentence."""
    *others, last = [form.description for form in _GENERAL]
    return f"{', '.join(others)} or {last}"
