"""The plan of the house holds: rooms, storeys, short functions, few parameters, one word per idea."""

import ast
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "src" / "calibseg"
PLAN = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
SOURCES = sorted(PACKAGE.rglob("*.py"))
LONG: list[str] = []


def test_at_the_top_level_there_are_rooms_only():
    entries = [path for path in PACKAGE.iterdir() if path.name != "__pycache__"]
    assert len(entries) <= 20
    assert {path.name for path in entries if path.suffix == ".py"} <= {"__init__.py", "__main__.py", "api.py"}


def test_the_storeys_of_the_plan_are_those_that_the_import_linter_checks():
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    checked = [
        {room.strip().removeprefix("calibseg.") for room in layer.split("|")}
        for layer in settings["tool"]["importlinter"]["contracts"][0]["layers"]
    ]
    rows = re.findall(r"^\| (\d+) \| ([^|]+) \|", PLAN, re.MULTILINE)
    drawn = [set(re.findall(r"`(\w+)`", rooms)) for _, rooms in rows]
    assert drawn == checked
    assert len(drawn) <= 11


def test_every_room_stands_on_a_storey():
    rooms = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").is_file()}
    drawn = set(re.findall(r"`(\w+)`", " ".join(re.findall(r"^\| \d+ \| ([^|]+) \|", PLAN, re.MULTILINE))))
    assert rooms <= drawn


def test_the_glossary_has_at_most_25_words():
    table = PLAN.partition("## Glossary")[2].partition("\n## ")[0]
    words = re.findall(r"^\| (?!word|---)([^|]+) \|", table, re.MULTILINE)
    assert 10 < len(words) <= 25


def test_functions_are_short_and_few_have_many_parameters():
    long, many = [], []
    for path in SOURCES:
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                where = f"{path.relative_to(PACKAGE)}: {node.name}"
                arguments = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
                if arguments and arguments[0].arg in ("self", "cls"):
                    arguments = arguments[1:]
                if (node.end_lineno or 0) - node.lineno + 1 > 80:
                    long.append(where)
                if len(arguments) > 8:
                    many.append(where)
    assert long == LONG
    assert len(many) <= 15, many  # half of them are commands


def test_files_are_about_one_idea():
    """About 300 lines in the package, about 400 in the tests; a little more is no sin."""
    long = [str(path.relative_to(ROOT)) for path in SOURCES if len(path.read_text("utf-8").splitlines()) > 330]
    tests = [path for path in (ROOT / "tests").rglob("*.py") if len(path.read_text("utf-8").splitlines()) > 450]
    assert (long, tests) == ([], [])
