"""What the product says to a person (docs/make_lines.py lists it): errors, events, log lines, what commands print, `--help`."""

import importlib.util
import re
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "docs" / "make_lines.py"
NO_SUBJECT = re.compile(r"\b(who|whoever|whom|somebody|nobody|anybody|everybody)\b", re.IGNORECASE)
PERSONS = re.compile(r"\b(we|us|our|ours)\b", re.IGNORECASE)
A_VALUE = re.compile(r"\{[^{}]*\}")


@pytest.fixture(scope="module")
def lines():
    spec = importlib.util.spec_from_file_location("make_lines", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.list_lines()


def words(line):
    return A_VALUE.sub("{}", line.text)


def test_the_list_has_errors_events_log_lines_prints_and_help(lines):
    kinds = [line.kind for line in lines]
    assert {"error", "event", "log", "print", "help"} == set(kinds)
    assert kinds.count("error") > 400
    assert kinds.count("help") > 150


def test_a_line_is_listed_with_its_file_and_number(lines):
    [line] = [line for line in lines if line.text.startswith("there is no job {job}{hint}")]
    assert line.path == "rover_bus/cli/views/history.py"
    source = (SCRIPT.parent.parent / line.path).read_text().splitlines()
    assert "there is no job" in source[line.number - 1]


def test_no_line_has_a_subject_that_names_nothing(lines):
    assert [str(line) for line in lines if NO_SUBJECT.search(words(line))] == []


def test_no_line_speaks_of_the_product_as_a_person(lines):
    assert [str(line) for line in lines if PERSONS.search(words(line))] == []
