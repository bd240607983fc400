"""Strict type coercion of values from files: a text is no number, true is not 1; errors name the expected type.

>>> coerce("train.epochs", 5, int), coerce("train.learning_rate", 1, float), coerce("a.b", [4, 8], tuple[int, ...])
(5, 1.0, (4, 8))
>>> coerce("train.epochs", "5", int)
Traceback (most recent call last):
calibseg.core.types.BadInput: train.epochs = '5' must be a whole number
>>> coerce("train.precision", 32, Literal["32", "16-mixed"], text="32")        # from the command line: text or number
'32'
"""

import contextlib
from collections.abc import Mapping
from dataclasses import MISSING, fields, is_dataclass
from numbers import Integral, Real
from types import UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from calibseg.core.flag import Flag
from calibseg.core.options import at_least, whole_number
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
    """A value is not of a type. `path` leads to it from the value that was asked about: `.cases[3].patient`."""

    def __init__(self, path: str = "", message: str = "") -> None:
        self.path, self.message = path, message


def coerce(path: str, value: Any, hint: Any, text: str | None = None) -> Any:
    """The value as its type wants it. `text` is how it was typed: what looks like a number may be meant as text.

    A type may be a TypedDict, whose further keys stay as they are, or a dataclass, which is built.

    >>> coerce("run.json: ", {"train": ["a", 1], "split_seed": 0}, dict[str, int])
    Traceback (most recent call last):
    calibseg.core.types.BadInput: run.json: train = ['a', 1] must be a whole number
    """
    failed = _Unfit()
    for candidate in (value,) if text is None else (value, text):
        try:
            return _converted(candidate, hint)
        except _Unfit as error:
            failed = error
    if failed.path == ":":
        raise BadInput(f"{path.removesuffix(': ')}: {failed.message}")
    if failed.path:
        key = failed.path.removeprefix(".") if path.endswith(": ") else failed.path
        raise BadInput(f"{path}{key} {failed.message}")
    raise BadInput(f"{path.removesuffix(': ')} = {_shown(value)} must be {_type_in_words(hint)}")


def check_fields(options: Any) -> None:
    """Every field of a frozen dataclass as its type wants it: what a `__post_init__` calls first."""
    hints, flags = get_type_hints(type(options)), get_type_hints(type(options), include_extras=True)
    for field in fields(options):
        value = coerce(field.name, getattr(options, field.name), hints[field.name])
        object.__setattr__(options, field.name, value)
        for flag in getattr(flags[field.name], "__metadata__", ()):
            if isinstance(flag, Flag) and flag.minimum is not None and value is not None:
                (whole_number if isinstance(value, int) else at_least)(field.name, value, flag.minimum)


def _converted(value: Any, hint: Any) -> Any:
    origin, arguments = get_origin(hint), get_args(hint)
    if hint is Any:
        return value
    if is_typeddict(hint) or is_dataclass(hint):
        return _record(value, hint)
    if origin is Literal:
        if isinstance(value, str | int | float) and value in arguments and not isinstance(value, bool):
            return value
    elif origin in (Union, UnionType):
        for option in arguments:
            with contextlib.suppress(_Unfit):
                return _converted(value, option)
    elif hint is float:
        if isinstance(value, Real) and not isinstance(value, bool):
            with contextlib.suppress(OverflowError):
                return float(value)
    elif hint is int:
        if isinstance(value, Integral) and not isinstance(value, bool):
            return int(value)
    elif (origin or hint) in (list, tuple):
        if isinstance(value, list | tuple):
            return _items(list(value), origin or hint, arguments)
    elif (origin or hint) in (dict, Mapping):
        if isinstance(value, Mapping):
            return {key: _at(f".{key}", item, (*arguments, Any, Any)[1]) for key, item in value.items()}
    elif hint is type(None):
        if value is None:
            return None
    elif isinstance(value, origin or hint):
        return value
    raise _Unfit


def _at(path: str, value: Any, hint: Any) -> Any:
    """A part of a value; what is wrong with it is said with its place."""
    try:
        return _converted(value, hint)
    except _Unfit as error:
        raise _Unfit(path + error.path, error.message or f"= {_shown(value)} must be {_type_in_words(hint)}") from None


def _record(value: Any, kind: Any) -> Any:
    """A table with known keys."""
    if not isinstance(value, Mapping):
        raise _Unfit
    hints = get_type_hints(kind)
    if is_typeddict(kind):
        needed = kind.__required_keys__
    else:
        needed = {field.name for field in fields(kind) if field.default is MISSING and field.default_factory is MISSING}
        from calibseg.core.registry import unknown  # which imports this module

        if foreign := [key for key in value if key not in hints]:
            raise _Unfit(":", unknown("key", str(foreign[0]), list(hints)))
    if missing := sorted(needed - set(value)):
        raise _Unfit(f".{missing[0]}", "is missing")
    items = {key: _at(f".{key}", item, hints.get(key, Any)) for key, item in value.items()}
    try:
        return items if is_typeddict(kind) else kind(**items)
    except BadInput as error:
        raise _Unfit(":", str(error)) from error


def _items(values: list[Any], kind: type, arguments: tuple[Any, ...]) -> Any:
    if kind is tuple and arguments and arguments[-1] is not Ellipsis:
        if len(values) != len(arguments):
            raise _Unfit
        return tuple(_converted(value, hint) for value, hint in zip(values, arguments, strict=True))
    hint = arguments[0] if arguments else Any
    if is_typeddict(hint) or is_dataclass(hint) or get_origin(hint) is dict:
        return kind(_at(f"[{number}]", value, hint) for number, value in enumerate(values))
    return kind(_converted(value, hint) for value in values)


def _shown(value: Any) -> str:
    return text if len(text := repr(value)) <= 200 else f"{text[:200]}..."


def _type_in_words(hint: Any) -> str:
    """A type in words."""
    origin, arguments = get_origin(hint), get_args(hint)
    if origin is Literal:
        return "one of " + ", ".join(map(repr, arguments))
    if origin in (Union, UnionType):
        return " or ".join(_type_in_words(option) for option in arguments if option is not type(None))
    if is_typeddict(hint) or is_dataclass(hint):
        return "a table"
    words = {
        int: "a whole number",
        float: "a number",
        str: "text in quotes",
        bool: "true or false",
        dict: "a table",
        list: "a list",
        tuple: "a list",
    }
    if origin in (list, tuple):
        inner = [_type_in_words(option) for option in arguments if option is not Ellipsis]
        return f"a list of {', '.join(dict.fromkeys(inner))}"
    return words.get(origin or hint, str(hint))
