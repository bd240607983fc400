"""Words on the command line that stand for more than themselves."""

from calibseg.core.types import BadInput


def pair(text: str, option: str) -> tuple[str, str]:
    """NAME=VALUE as two words; `option` is what to name where it is not."""
    name, equals, value = text.partition("=")
    if not (name and equals and value):
        raise BadInput(f"{option} {text!r} is not of the form NAME=VALUE")
    return name, value
