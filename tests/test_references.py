"""Every reference leads somewhere: links between documents, and what code points at.

Documents: links to files and headings, paths in `code`, imports of Python examples. Code, in its
comments, docstrings and messages: `MATH 2` (a section of the mathematics), `RULES 2` (a rule for
exactly once), a document and its heading (README, "Privacy"), and paths of the repository.
"""

import ast
import importlib
import io
import re
import subprocess
import tokenize
from collections import Counter
from collections.abc import Iterator
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parent.parent
MATH = Path("stream_app/core/MATH.md")
RULES = Path("stream_app/kafka/RULES.md")
PACKAGES = ("stream_app", "producers")
# Beside Python: files whose comments point at documents and modules.
OTHERS = (".js", ".mjs", ".ts", ".html", ".toml", ".yaml", ".yml", ".properties")
UNNAMED = ("Makefile", "Dockerfile", "ensure")

_FENCE = re.compile(r"(?ms)^ *```(\w*)\n(.*?)^ *```")
_CODE = re.compile(r"`([^`\n]+)`")
_LINK = re.compile(r"\]\(([^)\s]+)\)|<img [^>]*src=\"([^\"]+)\"")
_HEADING = re.compile(r"(?m)^#+ +(.+?) *$")
_SECTION = re.compile(r"(?m)^## (\d+)\. ")
_ITEM = re.compile(r"(?m)^(\d+)\. ")
_PATH = re.compile(r"(?<![\w./-])(?:stream_app|producers|deploy|tests|\.github|\.ci)/[\w./*-]*\w")
_MATH_SECTION = re.compile(r"\bMATH (\d+)(?:\.(\d+))?")
_RULE = re.compile(r"\bRULES (\d+)")
# A document, then perhaps one of its headings: README, "Privacy" or SECURITY.md, Coalitions.
_DOCUMENT = re.compile(
    r"(?<![\w./-])(README|[\w./-]*\w\.md)\b(?:, (?:\"([^\"]+)\"|([A-Z][a-z]\w*)))?"
)


@cache
def files() -> list[Path]:
    """All files that git has, from the root."""
    listed = subprocess.run(
        ["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True
    )
    return [Path(line) for line in listed.stdout.splitlines() if (ROOT / line).is_file()]


def documents() -> list[Path]:
    return [file for file in files() if file.suffix == ".md"]


def code() -> list[Path]:
    """All but this file, whose examples lead nowhere."""
    return [
        file
        for file in files()
        if (file.suffix in (".py", *OTHERS) or file.name in UNNAMED)
        and file != Path(__file__).relative_to(ROOT)
    ]


def only_broken(found: dict[str, list[str]]) -> dict[str, list[str]]:
    """The files whose references do not all lead somewhere."""
    return {file: broken for file, broken in found.items() if broken}


@cache
def read(file: Path) -> str:
    """Its text; empty if there is none."""
    return (ROOT / file).read_text(encoding="utf-8") if (ROOT / file).is_file() else ""


# --- Documents -----------------------------------------------------------------------------------


def slugs(text: str) -> set[str]:
    """The anchors of a document's headings, as GitHub makes them."""
    seen: Counter[str] = Counter()
    found = set()
    for heading in _HEADING.findall(_FENCE.sub("", text)):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", words).strip().replace(" ", "-")
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return found


def broken_links(file: Path, text: str) -> list[str]:
    """Links of a document to files or headings that are not there."""
    prose = _CODE.sub("", _FENCE.sub("", text))
    broken = []
    for found in _LINK.findall(prose):
        target = "".join(found)
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        there = (ROOT / file).parent / path if path else ROOT / file
        outside = not there.resolve().is_relative_to(ROOT.resolve())
        missing = outside or not there.exists()
        if missing or (anchor and anchor not in slugs(there.read_text(encoding="utf-8"))):
            broken.append(target)
    return broken


def test_links() -> None:
    broken = {str(file): broken_links(file, read(file)) for file in documents()}

    assert {} == only_broken(broken)


def test_paths_in_documents() -> None:
    """What stands in `code` and begins like a path of the repository is one."""
    spans = {file: " ".join(_CODE.findall(_FENCE.sub("", read(file)))) for file in documents()}
    broken = {str(file): broken_paths(text) for file, text in spans.items()}

    assert {} == only_broken(broken)


def test_imports_of_examples() -> None:
    """What Python examples import is there."""
    blocks = [block for file in documents() for block in _FENCE.findall(read(file))]
    imports = [
        (node.module, name.name)
        for language, example in blocks
        if language == "python"
        for node in ast.walk(ast.parse(example))
        if isinstance(node, ast.ImportFrom)
        for name in node.names
    ]

    assert imports
    for module, name in imports:
        assert hasattr(importlib.import_module(str(module)), name), (module, name)


def test_nothing_outside_the_repository_is_named() -> None:
    assert [] == [str(file) for file in documents() if re.search(r"\.\./shared|/work/", read(file))]


# --- Code ----------------------------------------------------------------------------------------


def comments(source: str) -> Iterator[str]:
    """Comments, those of consecutive lines as one text."""
    block: list[str] = []
    last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            if token.start[0] != last + 1:
                yield " ".join(block)
                block = []
            block.append(token.string.lstrip("# "))
            last = token.start[0]
    yield " ".join(block)


def strings(source: str) -> Iterator[tuple[str, bool]]:
    """Every string, and whether it is a docstring."""
    tree = ast.parse(source)
    standing = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield " ".join(node.value.split()), id(node) in standing


def texts(file: Path) -> Iterator[str]:
    """All that a file says in words; strings of tests are data, but for docstrings."""
    if file.suffix != ".py":
        yield read(file)
        return
    yield from comments(read(file))
    for text, documented in strings(read(file)):
        if documented or file.parts[0] != "tests":
            yield text


def broken_paths(text: str) -> list[str]:
    """Paths of the repository that are not there; * stands for anything."""
    return [path for path in _PATH.findall(text) if not list(ROOT.glob(path.rstrip("/")))]


@cache
def sections(math: str) -> dict[str, str]:
    """The numbered sections of the mathematics."""
    parts = _SECTION.split(math)
    return dict(zip(parts[1::2], parts[2::2], strict=True))


def broken_sections(text: str, math: str, rules: str) -> list[str]:
    """Sections of the mathematics, or of its numbered points, and rules that do not exist."""
    broken = []
    for number, point in _MATH_SECTION.findall(text):
        body = sections(math).get(number)
        points = _ITEM.findall(body or "") + re.findall(rf"(?m)^### {number}\.(\d+)", body or "")
        if body is None or (point and point not in points):
            broken.append(f"MATH {number}" + (f".{point}" if point else ""))
    return broken + [f"RULES {n}" for n in _RULE.findall(text) if n not in _ITEM.findall(rules)]


def broken_documents(file: Path, text: str) -> list[str]:
    """Documents that are neither beside the file nor at the root, or without that heading."""
    broken = []
    for name, quoted, word in _DOCUMENT.findall(text):
        document = "README.md" if name == "README" else name
        heading = quoted or word
        homes = [home for home in (file.parent, Path()) if (ROOT / home / document).is_file()]
        headings = [h.lower() for home in homes for h in _HEADING.findall(read(home / document))]
        if not homes or (heading and heading.lower() not in headings):
            broken.append(f"{name}, {heading}" if heading else name)
    return broken


def test_references_of_code() -> None:
    """Sections of the mathematics, rules, documents with their headings."""
    math = read(MATH)
    rules = read(RULES)
    broken: dict[str, list[str]] = {}
    for file in code():
        found = broken.setdefault(str(file), [])
        for text in texts(file):
            found += broken_sections(text, math, rules)
            found += broken_documents(file, text)

    assert {} == only_broken(broken)


def test_paths_in_code() -> None:
    broken = {
        str(file): [path for text in texts(file) for path in broken_paths(text)] for file in code()
    }

    assert {} == only_broken(broken)


def test_messages_name_the_document_that_helps() -> None:
    """The README only opens doors: a message sends its reader to where the thing stands."""
    vague = {
        str(file): [
            text for text, documented in strings(read(file)) if "README" in text and not documented
        ]
        for file in code()
        if file.suffix == ".py" and file.parts[0] in PACKAGES
    }

    assert {} == only_broken(vague)


# --- The finders themselves ----------------------------------------------------------------------


def test_headings_become_anchors_as_on_github() -> None:
    text = "# A *b*, `c-d`: e\n\n## Same\n\n## Same\n\n```\n# no heading\n```\n"

    assert {"a-b-c-d-e", "same", "same-1"} == slugs(text)


def test_broken_links_are_found() -> None:
    text = (
        "[a](README.md) [b](NOWHERE.md) [c](#here) [d](#there) [e](https://x.example/y.md)\n"
        '`[f](code.md)` ![g](no.svg) <img alt="" src="no.png"> [h](../elsewhere.md)\n# Here\n'
    )
    broken = [link for link in broken_links(Path("X.md"), text) if link != "#here"]

    # The document of this text is not there, so neither are its own headings.
    assert ["NOWHERE.md", "#there", "no.svg", "no.png", "../elsewhere.md"] == broken


def test_broken_references_are_found() -> None:
    math = "# M\n\n## 1. One\n\n1. first\n\n## 2. Two\n\n### 2.1 part\n"
    rules = "# R\n\n1. first\n2. second\n"
    text = "MATH 1, MATH 1.1, (MATH 1.2), MATH 2.1; MATH 3's; RULES 2, RULES 3."

    assert ["MATH 1.2", "MATH 3", "RULES 3"] == broken_sections(text, math, rules)


def test_broken_documents_are_found() -> None:
    text = (
        'README, "Privacy"; README, "Nowhere". SECURITY.md, Coalitions; SECURITY.md, Nowhere; '
        "README.md, as ever; CHANGELOG.md; GONE.md"
    )
    broken = broken_documents(Path("deploy/x.py"), text)

    assert ["README, Nowhere", "SECURITY.md, Nowhere", "GONE.md"] == broken


def test_broken_paths_are_found() -> None:
    text = "deploy/SECURITY.md, tests/, `deploy/*.md`, deploy/no.toml; a.deploy/x"

    assert ["deploy/no.toml"] == broken_paths(text)


def test_comments_of_consecutive_lines_are_one_text() -> None:
    assert "see MATH 2" in list(comments("x = 1\n# see MATH\n# 2\ny = 2\n\n# alone\n"))
