"""What the command line says about a field of an options dataclass: its help, and its name where that differs."""

from dataclasses import dataclass


@dataclass(frozen=True)
class Flag:
    """Stands in a field's annotation: `bins: Annotated[int, Flag("bins of the reliability diagram")] = 15`.

    names: such as --format; none: the field's own name
    minimum: of a number
    form: of a repeatable NAME=VALUE
    """

    help: str
    names: tuple[str, ...] = ()
    minimum: int | None = None
    form: str = "NAME=VALUE"
