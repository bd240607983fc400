"""From words on the command line to values: options dataclasses, NAME=VALUE, comma-separated lists.

What would be passed over in silence is refused: an option of one value that is given twice (`Verbs`), and an option of
which nothing would come (`refuse_given`).
"""

import inspect
import json
import re
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from functools import wraps
from typing import Annotated, Any, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

from calibseg.core.flag import Flag
from calibseg.core.types import BadInput


class Verbs(typer.Typer):
    """Commands each of whose options is given once, unless it is repeatable or a mere switch."""

    def command(self, name: str | None = None, **settings: Any) -> Any:
        return super().command(name, cls=_Once, **settings)


class _Once(TyperCommand):
    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        _, _, given = self.make_parser(ctx).parse_args(args=list(args))
        for option, times in Counter(given).items():
            if times > 1 and not (option.multiple or getattr(option, "is_flag", False)):
                raise BadInput(f"{option.opts[0]} is given {times} times, but counts once; a list is parted by commas")
        return super().parse_args(ctx, args)


def refuse_given(options: Any, why: str, names: Iterable[str] = ()) -> None:
    """Refuse what is set in a dataclass of options (or in these of its fields) where nothing would come of it."""
    hints = get_type_hints(type(options), include_extras=True)
    for field in fields(options):
        if (not names or field.name in names) and (getattr(options, field.name) or None) != (field.default or None):
            flag = get_args(hints[field.name])[1]
            own = flag.names if isinstance(flag, Flag) else (flag.default, *(flag.param_decls or ()))  # typer's order
            raise BadInput(f"{next((one for one in own if str(one).startswith('--')), _flag(field.name))} {why}")


def expanded(command: Callable[..., Any]) -> Callable[..., Any]:
    """A command in which each parameter that is a dataclass is one option for each of its fields.

    A field says what typer should know in its annotation: a `Flag`, or a typer.Option. What is a tuple in the dataclass
    is comma-separated on the command line, and what is a mapping is a repeatable NAME=VALUE.
    """
    signature = inspect.signature(command, eval_str=True)
    groups: dict[str, Any] = {
        name: option.annotation for name, option in signature.parameters.items() if is_dataclass(option.annotation)
    }
    hints = {name: get_type_hints(group, include_extras=True) for name, group in groups.items()}
    parameters: list[inspect.Parameter] = []
    for name, parameter in signature.parameters.items():
        if name in groups:
            parameters += [_parameter(field, hints[name][field.name]) for field in fields(groups[name])]
        else:
            parameters.append(parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY))

    @wraps(command)
    def with_options(**arguments: Any) -> Any:
        for name, group in groups.items():
            own = [field.name for field in fields(group)]
            arguments[name] = group(**{key: _value(arguments.pop(key), hints[name][key], key) for key in own})
        return command(**arguments)

    with_options.__signature__ = signature.replace(parameters=parameters)  # pyright: ignore[reportAttributeAccessIssue]
    with_options.__annotations__ = {option.name: option.annotation for option in parameters}
    return with_options


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _parameter(field: "Field[Any]", hint: Any) -> inspect.Parameter:
    kind, flag = get_args(hint)
    default: Any = field.default_factory() if field.default_factory is not MISSING else field.default
    if isinstance(flag, Flag):
        names = flag.names or (_flag(field.name),)
        flag = typer.Option(*names, help=flag.help, min=flag.minimum)
    if get_origin(kind) is tuple:
        kind, default = str, ",".join(default) or None
    elif get_origin(kind) is Mapping:
        kind, default = list[str] | None, None
    annotation = Annotated[kind if default is not None else kind | None, flag]
    return inspect.Parameter(field.name, inspect.Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def _value(text: Any, hint: Any, name: str) -> Any:
    kind, flag = get_args(hint)
    if get_origin(kind) is tuple:
        if text is not None and not words(text):
            raise BadInput(
                f"{_flag(name)} is the empty list {text!r}: name one or more, parted by commas, or leave it out"
            )
        return tuple(map(literal, words(text))) if get_args(kind)[0] is int else words(text)
    if get_origin(kind) is Mapping:
        return assigned(text, "--option", flag.form)
    return text


def words(text: str | None) -> tuple[Any, ...]:
    """`dsc, ece` -> ("dsc", "ece"); a comma in brackets parts nothing: `nacl (weight=1, patch=3)` is one method."""
    return tuple(word.strip() for word in re.split(r",(?![^()]*\))", text or "") if word.strip())


def pair(text: str, option: str, form: str = "NAME=VALUE") -> tuple[str, str]:
    """NAME=VALUE as two words; `option` is what to name where it is not. In OWNER.OPTION=VALUE the name has a dot."""
    name, equals, value = text.partition("=")
    owner, dot, option_name = name.rpartition(".")
    if not (name and equals and value) or ("." in form and not (owner and dot and option_name)):
        raise BadInput(f"{option} {text!r} is not of the form {form}")
    return name, value


def pairs(texts: Iterable[str] | None, option: str, form: str = "NAME=VALUE") -> dict[str, str]:
    """NAME=VALUE, repeated, as a table; a name stands for one thing."""
    by_name: dict[str, str] = {}
    for name, value in (pair(text, option, form) for text in texts or ()):
        if by_name.setdefault(name, value) != value:
            raise BadInput(
                f"{option} names {name!r} twice, as {by_name[name]} and as {value}: give each a name of its own"
            )
    return by_name


def changes(texts: Iterable[str] | None) -> list[str]:
    """What --set names, each key once; whoever reads the recipe says what is wrong with a change."""
    by_key: dict[str, str] = {}
    for text in texts or ():
        key = text.partition("=")[0].strip()
        if by_key.setdefault(key, text) != text:
            raise BadInput(f"--set names {key} twice, as {by_key[key]} and as {text}: only one can count")
    return list(by_key.values())


def assigned(texts: Iterable[str] | None, option: str, form: str = "NAME=VALUE") -> dict[str, Any]:
    """NAME=VALUE as a table; a value is JSON, or else the text itself. A name stands for one thing."""
    return {name: literal(value) for name, value in pairs(texts, option, form).items()}


def literal(text: str) -> Any:
    """Numbers are numbers, and what is no JSON is text."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # of whole numbers of thousands of digits and of lists thousands deep, too
        return text
