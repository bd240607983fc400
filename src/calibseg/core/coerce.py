"""Values of a TOML file against types, strictly: a text is no number, true is not 1, and an error says what is wanted.

>>> coerce("train.epochs", 5, int), coerce("train.learning_rate", 1, float), coerce("a.b", [4, 8], tuple[int, ...])
(5, 1.0, (4, 8))
>>> coerce("train.epochs", "5", int)
Traceback (most recent call last):
calibseg.core.types.BadInput: train.epochs = '5' must be a whole number
>>> coerce("train.precision", 32, Literal["32", "16-mixed"], text="32")        # from the command line: text or number
'32'
"""

import json
from collections.abc import Mapping
from dataclasses import fields
from numbers import Integral, Real
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from calibseg.core.types import BadInput

NAMES = {"Literal": Literal, "Any": Any, "int": int, "float": float, "str": str, "bool": bool}
NAMES |= {"list": list, "tuple": tuple, "dict": dict, "None": None, "Sequence": list}


def type_named(annotation: str) -> Any:
    """The type that a source's annotation names; Any where it uses a name of its own (then the class itself checks)."""
    try:
        return eval(annotation or "Any", {"__builtins__": {}}, NAMES)
    except (NameError, TypeError, AttributeError):
        return Any


class _Unfit(Exception):
    """A value is not of a type."""


def coerce(path: str, value: Any, hint: Any, text: str | None = None) -> Any:
    """The value as its type wants it. `text` is how it was typed: what looks like a number may be meant as text."""
    for candidate in (value,) if text is None else (value, text):
        try:
            return _converted(candidate, hint)
        except _Unfit:
            continue
    raise BadInput(f"{path} = {value!r} must be {_said(hint)}")


def check_fields(options: Any) -> None:
    """Every field of a frozen dataclass as its type wants it: what a `__post_init__` calls first."""
    hints = get_type_hints(type(options))
    for field in fields(options):
        object.__setattr__(options, field.name, coerce(field.name, getattr(options, field.name), hints[field.name]))


def _converted(value: Any, hint: Any) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if origin is Literal:
        if value in arguments and not isinstance(value, bool):
            return value
    elif origin in (Union, UnionType):
        for option in arguments:
            try:
                return _converted(value, option)
            except _Unfit:
                continue
    elif hint is float:
        if isinstance(value, Real) and not isinstance(value, bool):
            return float(value)
    elif hint is int:
        if isinstance(value, Integral) and not isinstance(value, bool):
            return int(value)
    elif (origin or hint) in (list, tuple):
        if isinstance(value, list | tuple):
            return _items(list(value), origin or hint, arguments)
    elif hint is type(None):
        if value is None:
            return None
    elif isinstance(value, origin or hint):
        return value
    raise _Unfit


def _items(values: list[Any], kind: type, arguments: tuple[Any, ...]) -> Any:
    if kind is tuple and arguments and arguments[-1] is not Ellipsis:
        if len(values) != len(arguments):
            raise _Unfit
        return tuple(_converted(value, hint) for value, hint in zip(values, arguments, strict=True))
    hint = arguments[0] if arguments else Any
    return kind(_converted(value, hint) for value in values)


def _said(hint: Any) -> str:
    """A type in words."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return "one of " + ", ".join(map(repr, arguments))
    if origin in (Union, UnionType):
        return " or ".join(_said(option) for option in arguments if option is not type(None))
    words = {int: "a whole number", float: "a number", str: "text in quotes", bool: "true or false", dict: "a table"}
    if origin in (list, tuple):
        inner = [_said(option) for option in arguments if option is not Ellipsis]
        return f"a list of {', '.join(dict.fromkeys(inner))}"
    return words.get(origin or hint, str(hint))


def toml_key(key: str) -> str:
    return key if key.replace("_", "").replace("-", "").isalnum() else json.dumps(key)


def toml_value(value: Any) -> str:
    """A value as TOML writes it."""
    if isinstance(value, bool | str):
        return json.dumps(value, ensure_ascii=False)
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(toml_value, value))}]"
    if isinstance(value, Mapping):
        return "{" + ", ".join(f"{toml_key(key)} = {toml_value(item)}" for key, item in value.items()) + "}"
    return repr(value)
