"""Write the table of values in docs/kubernetes-install.md from the chart's schema and values; `--check`: is it up to date?

python docs/make_chart.py [--check]
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec.yaml

PAGE = Path(__file__).parent / "kubernetes-install.md"
CHART = Path(__file__).parents[1] / "deploy" / "helm" / "rover"
BEGIN, END = "<!-- values: written by `make docs` -->", "<!-- end of values -->"


def main(arguments: list[str]) -> int:
    """Write the page, or say whether it is as it should be."""
    text = PAGE.read_text()
    before, rest = text.split(BEGIN)
    after = rest.split(END)[1]
    made = f"{before}{BEGIN}\n{table()}\n{END}{after}"
    if "--check" not in arguments:
        PAGE.write_text(made)
    elif made != text:
        sys.stderr.write(
            "docs/kubernetes-install.md has drifted from the chart: run `make docs` and commit\n"
        )
        return 1
    return 0


def table() -> str:
    """Return a row a value. Raises ValueError for a value without words, or without a default."""
    schema = json.loads((CHART / "values.schema.json").read_text())
    values = msgspec.yaml.decode((CHART / "values.yaml").read_bytes())
    return "\n".join(["| Value | Default | Meaning |", "|---|---|---|", *rows(schema, values, "")])


def rows(schema: dict[str, Any], values: dict[str, Any], above: str) -> Iterator[str]:
    """Yield the rows of one table of values, and of those below it."""
    described = schema["properties"]
    if unknown := values.keys() ^ described.keys():
        raise ValueError(f"{sorted(unknown)} of {above or 'the chart'} lack a default or words")
    for key, each in described.items():
        if "properties" in each:
            yield f"| **`{above}{key}`** | | {each['description']} |"
            yield from rows(each, values[key], f"{above}{key}.")
        else:
            choices = f" One of `{'`, `'.join(map(str, each['enum']))}`." if "enum" in each else ""
            shown = json.dumps(values[key], ensure_ascii=False)
            yield f"| `{above}{key}` | `{shown}` | {each['description']}{choices} |"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
