"""The `key=value` words of a golden script as fields of an input, by the input's own types: a new field needs no line here.

Lists are written with commas; pairs, and structs in their fields' order, with colons (or a dash between two slots).
"""

from __future__ import annotations

import re
from typing import Annotated, Any, TypeVar, get_args, get_origin

import msgspec

T = TypeVar("T", bound=msgspec.Struct)
Words = dict[str, str]


def made(cls: type[T], words: Words, **given: Any) -> T:
    """Make an input of all words. `given` is what the script adds; a word is stronger. Raises ValueError for a word too many."""
    value = part(cls, words, **given)
    if words:
        raise ValueError(f"no field of {cls.__name__}: {', '.join(words)}")
    return value


def part(cls: type[T], words: Words, **given: Any) -> T:
    """Make a part of an input of the words that are its fields; they are taken out of `words`."""
    for field in msgspec.structs.fields(cls):
        if field.name in words:
            value = _split(words.pop(field.name), field.type)
            given[field.name] = msgspec.convert(value, field.type, strict=False)
    return cls(**given)


def renamed(words: Words, **names: str) -> Words:
    """Return the words with their fields' names where a script has shorter ones."""
    return {names.get(word, word): value for word, value in words.items()}


def _split(text: str, kind: Any) -> Any:
    """Return text as lists and tables of text, as a type has it."""
    if get_origin(kind) is Annotated:
        kind = get_args(kind)[0]
    inner = get_args(kind)
    if get_origin(kind) is list:
        return [_split(item, inner[0]) for item in text.split(",") if item]
    if get_origin(kind) is dict:
        return dict(item.split(":") for item in text.split(",") if item)
    if get_origin(kind) is tuple:
        return re.split("[:-]", text)
    if isinstance(kind, type) and issubclass(kind, msgspec.Struct):
        return dict(zip(kind.__struct_fields__, text.split(":"), strict=False))
    return text
