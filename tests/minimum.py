"""`python tests/minimum.py`: pip constraints, the lowest version of everything we run on."""

import re
import tomllib
from pathlib import Path

PROJECT = Path(__file__).parent.parent / "pyproject.toml"


def constraints() -> list[str]:
    """`name==lowest` for each dependency, with the extras that users install."""
    project = tomllib.loads(PROJECT.read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    wanted = [*project["dependencies"], *extras["plot"], *extras["replay"]]
    found = [re.fullmatch(r"([a-z0-9-]+)[>~]=([0-9.]+)", text) for text in wanted]
    assert all(found), f"each needs its lowest version: {wanted}"
    return [f"{match[1]}=={match[2]}" for match in found if match]


if __name__ == "__main__":
    print("\n".join(constraints()))
