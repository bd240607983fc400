"""What would be passed over in silence is refused: options given twice, options of which nothing would come."""

from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import pytest
import typer
from typer.testing import CliRunner

from calibseg.cli import app as calibseg
from calibseg.cli.parsing import Verbs, changes, refuse_given
from calibseg.core.flag import Flag
from calibseg.core.types import BadInput


@pytest.fixture
def run():
    app = Verbs()

    @app.command()
    def say(
        words: list[str],
        size: Annotated[tuple[int, int], typer.Option()] = (1, 1),
        name: Annotated[str, typer.Option("--name", "-n")] = "",
        also: Annotated[list[str] | None, typer.Option()] = None,
        loud: Annotated[bool, typer.Option()] = False,
    ) -> None:
        typer.echo((words, size, name, also, loud))

    return lambda line: CliRunner().invoke(app, line.split())


@pytest.mark.parametrize(
    ("line", "option"),
    [("a --name b -n c", "--name"), ("--size 1 2 a --size 3 4", "--size"), ("a -n b -n b", "--name")],
)
def test_an_option_of_one_value_that_is_given_twice_is_refused(run, line, option):
    done = run(line)
    assert isinstance(done.exception, BadInput)
    assert str(done.exception) == f"{option} is given 2 times, but counts once; a list is parted by commas"


def test_lists_switches_and_arguments_may_be_repeated(run):
    done = run("a b --also c --also d --loud --loud --size 3 4")
    assert done.output == "(['a', 'b'], (3, 4), '', ['c', 'd'], True)\n"


def test_every_command_of_ours_refuses_them():
    group = typer.main.get_command(calibseg)

    def commands(group, path=()):
        for name, command in group.commands.items():
            yield from commands(command, (*path, name)) if hasattr(command, "commands") else [((*path, name), command)]

    found = dict(commands(group))
    assert len(found) > 20
    for path, command in found.items():
        for option in command.params:
            if option.param_type_name == "option" and not (option.multiple or option.is_flag):
                given = [option.opts[0], *["1"] * option.nargs] * 2
                done = CliRunner().invoke(calibseg, [*path, *given])
                assert "is given 2 times" in str(done.exception), (path, option.opts)


@dataclass(frozen=True)
class Options:
    kind: Annotated[str, Flag("what")] = "p"
    file_format: Annotated[str | None, Flag("layout", ("--format",))] = None
    subset: Annotated[str, typer.Option("--subset", "--cases")] = "test"
    more: Annotated[list[Path] | None, typer.Option()] = None


@pytest.mark.parametrize(
    ("given", "name"),
    [({"kind": "q"}, "--kind"), ({"file_format": "a"}, "--format"), ({"subset": "b"}, "--subset"),
     ({"more": [Path("x")]}, "--more")],
)  # fmt: skip
def test_an_option_that_would_change_nothing_is_named_as_the_user_wrote_it(given, name):
    with pytest.raises(BadInput, match=f"^{name} is for others$"):
        refuse_given(Options(**given), "is for others")
    refuse_given(Options(), "is for others")
    refuse_given(Options(more=[]), "is for others")
    if name != "--more":
        refuse_given(Options(**given), "is for others", ("more",))


def test_a_key_that_is_set_twice_is_refused_unless_it_says_the_same():
    assert changes(["a.b=1", "c=2", "a.b=1"]) == ["a.b=1", "c=2"]
    with pytest.raises(BadInput, match=r"^--set names a\.b twice, as a\.b=1 and as a\.b = 2: only one can count$"):
        changes(["a.b=1", "a.b = 2"])
