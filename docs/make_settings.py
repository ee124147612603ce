"""Write the tables of docs/settings.md from the fields of settings and of job files; `--check` says whether they are up to date.

python docs/make_settings.py [--check]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

from rover_bus.events.written_settings import every_setting

PAGE = Path(__file__).parent / "settings.md"
MARK = "<!-- {what}: written by `make docs` -->"
END = "<!-- end {what} -->"
TABLES = {"of processes": False, "of jobs": True}


def main(arguments: list[str]) -> int:
    """Write the page, or say whether it is as it should be."""
    text = made = PAGE.read_text()
    for what, of_job in TABLES.items():
        begin, end = MARK.format(what=what), END.format(what=what)
        made = f"{made[: made.index(begin)]}{begin}\n{table(of_job)}\n{made[made.index(end) :]}"
    if "--check" not in arguments:
        PAGE.write_text(made)
    elif made != text:
        sys.stderr.write("docs/settings.md has drifted from the settings: run `make docs` and commit\n")
        return 1
    return 0


def table(of_job: bool) -> str:
    """Return a row a setting."""
    return "\n".join(["| Name | Default | Range | Why |", "|---|---|---|---|", *rows(of_job)])


def rows(of_job: bool) -> Iterator[str]:
    for name, setting in every_setting().items():
        if setting.of_job == of_job:
            default = setting.spell(setting.default)
            yield f"| `{name}` | `{default}` | {setting.range} | {setting.reason} |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
