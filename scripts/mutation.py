"""Deliberate faults: how many the tests notice (`make mutation`).

A mutant is the program with one small change: `<` for `<=`, `+` for `-`, a number off by one, a refusal left out, `abs`
forgotten. Tests of its room run on it, those that call the changed function (covering_tests.py), in a forked process
(mutant_runs.py), so that nothing is written to disk. A mutant that no test fails on survives: either a test is missing,
or the change means nothing (equivalent mutants, listed with the reason in mutation.toml). The sample follows from the
seed.

    python scripts/mutation.py                          every room of mutation.toml, its sample each
    python scripts/mutation.py losses --sample 200      one room
    python scripts/mutation.py src/calibseg/losses/crac.py --sample 0 --list   all mutants of a file, not run
"""

import argparse
import ast
import copy
import os
import random
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from types import CodeType

from mutant_runs import SLACK_S, Known, run_anew, run_room

ROOT = Path(__file__).resolve().parent.parent
SRC = ROOT / "src"
SWAPS: dict[type, type] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.Is: ast.IsNot, ast.IsNot: ast.Is, ast.In: ast.NotIn, ast.NotIn: ast.In,
    ast.Add: ast.Sub, ast.Sub: ast.Add, ast.Mult: ast.Div, ast.Div: ast.Mult, ast.FloorDiv: ast.Mult,
    ast.Mod: ast.Mult, ast.Pow: ast.Mult, ast.And: ast.Or, ast.Or: ast.And,
    ast.BitAnd: ast.BitOr, ast.BitOr: ast.BitAnd,
}  # fmt: skip
CALLS = {"min": "max", "max": "min", "any": "all", "all": "any", "amin": "amax", "amax": "amin", "sum": "mean",
         "mean": "sum", "argmax": "argmin", "floor": "ceil", "ceil": "floor"}  # fmt: skip
DROPPED = {"abs", "clamp", "clamp_", "abs_", "neg_", "sign_", "sorted", "unique", "squeeze", "round"}


@dataclass(frozen=True)
class Mutant:
    file: str  # relative to src
    line: int
    source: str  # the line before, stripped
    change: str
    number: int  # among the mutants of its file
    function: int | None  # first line of the function that it is in, None: outside of functions

    @property
    def name(self) -> str:
        return f"{self.file}:{self.line}: {self.change}   | {self.source}"


@dataclass(frozen=True)
class Room:
    name: str
    files: list[str]
    tests: list[str]


def changes(tree: ast.Module) -> Iterator[tuple[ast.AST, str, ast.AST]]:
    """(node, what changes, the node that takes its place); in the order of the source."""
    skipped = set(_not_executed(tree))
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        yield from ((node, what, new) for what, new in _variants(node))


def _variants(node: ast.AST) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(node, ast.Compare):
        for i, op in enumerate(node.ops):
            if type(op) in SWAPS:
                new = copy.copy(node)
                new.ops = [SWAPS[type(op)]() if j == i else other for j, other in enumerate(node.ops)]
                yield f"{type(op).__name__} -> {type(new.ops[i]).__name__}", new
    elif isinstance(node, (ast.BinOp, ast.BoolOp, ast.AugAssign)) and type(node.op) in SWAPS:
        new = copy.copy(node)
        new.op = SWAPS[type(node.op)]()  # pyright: ignore[reportAttributeAccessIssue]
        yield f"{type(node.op).__name__} -> {type(new.op).__name__}", new
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, (ast.USub, ast.Not, ast.Invert)):
        yield f"{type(node.op).__name__} left out", node.operand
    elif isinstance(node, ast.Constant):
        yield from _constants(node)
    elif isinstance(node, ast.Call):
        yield from _calls(node)
    elif isinstance(node, ast.Raise):
        yield "raise left out", ast.copy_location(ast.Pass(), node)
    elif isinstance(node, ast.IfExp):
        yield "branches swapped", ast.copy_location(ast.IfExp(node.test, node.orelse, node.body), node)


def _constants(node: ast.Constant) -> Iterator[tuple[str, ast.AST]]:
    value = node.value
    if isinstance(value, bool):
        new: object = not value
    elif isinstance(value, int):
        new = value + 1
    elif isinstance(value, float):
        new = value * 2 or 0.5
    else:
        return
    yield f"{value!r} -> {new!r}", ast.copy_location(ast.Constant(new), node)  # pyright: ignore[reportArgumentType]


def _calls(node: ast.Call) -> Iterator[tuple[str, ast.AST]]:
    method = isinstance(node.func, ast.Attribute)
    name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
    if name in CALLS:
        new = copy.deepcopy(node)
        if isinstance(new.func, ast.Attribute):
            new.func.attr = CALLS[name]
        elif name in ("sum",):
            return
        else:
            new.func = ast.copy_location(ast.Name(CALLS[name], ast.Load()), node)
        yield f"{name} -> {CALLS[name]}", new
    elif name in DROPPED:
        assert not method or isinstance(node.func, ast.Attribute)
        of_module = method and isinstance(node.func.value, ast.Name) and node.func.value.id in ("torch", "np", "math")
        kept = node.args[0] if (not method or of_module) and node.args else None
        if kept is None and method and not of_module:
            kept = node.func.value
        if kept is not None:
            yield f"{name} left out", kept


def _not_executed(tree: ast.Module) -> Iterator[int]:
    """Nodes whose change is no fault: annotations, texts of errors and warnings, decorators, facts for listings."""
    for node in ast.walk(tree):
        parts: list[ast.AST | None] = []
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
            parts += node.decorator_list
        if isinstance(node, ast.FunctionDef):
            parts += [node.returns, *(a.annotation for a in (*node.args.args, *node.args.kwonlyargs))]
        if isinstance(node, ast.AnnAssign):
            parts.append(node.annotation)
        if isinstance(node, ast.Raise):
            parts.append(node.exc)
        if isinstance(node, ast.Call) and getattr(node.func, "attr", "") in ("warn", "register_buffer"):
            parts.append(node)
        if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "zip":
            parts += [k.value for k in node.keywords if k.arg == "strict"]
        if isinstance(node, ast.ClassDef):
            parts += [child.value for child in node.body if isinstance(child, ast.Assign)]
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            parts.append(node)
        for part in parts:
            if part is not None:
                yield from (id(child) for child in ast.walk(part))


class _Swap(ast.NodeTransformer):
    def __init__(self, old: ast.AST, new: ast.AST):
        self.old, self.new = old, new

    def visit(self, node: ast.AST) -> ast.AST:
        return self.new if node is self.old else self.generic_visit(node)


def mutants(file: str) -> list[Mutant]:
    text = (SRC / file).read_text(encoding="utf-8")
    lines = text.splitlines()
    tree = ast.parse(text)
    bodies = {id(n): f for f in ast.walk(tree) if isinstance(f, ast.FunctionDef) for s in f.body for n in ast.walk(s)}
    made = []
    for number, (node, what, _) in enumerate(changes(tree)):
        inside, line = bodies.get(id(node)), node.lineno  # pyright: ignore[reportAttributeAccessIssue]
        begin = min([inside.lineno, *(d.lineno for d in inside.decorator_list)]) if inside else None
        made.append(Mutant(file, line, lines[line - 1].strip(), what, number, begin))
    return made


def mutated_code(mutant: Mutant) -> CodeType:
    path = SRC / mutant.file
    tree = ast.parse(path.read_text(encoding="utf-8"))
    node, _, new = list(changes(tree))[mutant.number]
    tree = ast.fix_missing_locations(_Swap(node, ast.copy_location(new, node)).visit(tree))
    return compile(tree, str(path), "exec")


def able_tests(mutant: Mutant, known: Known) -> list[str]:
    """The tests that can notice a mutant, the quickest first: those that call its function, or, outside of functions
    and where nobody calls it in this process, those that touch its file, then all others."""
    calling = [test for test, _, called in known if mutant.function in called.get(mutant.file, ())]
    if calling:
        return calling
    return sorted((test for test, *_ in known), key={t: mutant.file not in c for t, _, c in known}.__getitem__)


def rooms() -> tuple[list[Room], dict[tuple[str, str, str], str], dict[str, int]]:
    facts = tomllib.loads((ROOT / "scripts" / "mutation.toml").read_text(encoding="utf-8"))
    equivalent = {(e["file"], e["source"], e["change"]): e["why"] for e in facts.get("equivalent", [])}
    made, samples = [], {}
    for name, room in facts["room"].items():
        files = sorted({str(p.relative_to(SRC)) for g in room["files"] for p in SRC.glob(g)})
        made.append(Room(name, files, room["tests"]))
        samples[name] = room["sample"]
    return made, equivalent, samples


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", nargs="*", help="rooms of mutation.toml, or files; default: every room")
    parser.add_argument("--sample", type=int, help="mutants of each room (0: all)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=1, help="mutants side by side")
    parser.add_argument("--match", nargs="+", default=[""], help="mutants alone whose printed line holds one of these")
    parser.add_argument("--tests", nargs="+", help="these tests (files, or FILE::TEST) in place of the room's")
    parser.add_argument("--list", action="store_true", help="list the sample, run nothing")
    options = parser.parse_args()
    os.chdir(ROOT)
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    known, equivalent, samples = rooms()
    chosen = known if not options.what else [r for r in known if r.name in options.what]
    if files := [str(Path(word).resolve().relative_to(SRC)) for word in options.what if word.endswith(".py")]:
        tests = dict.fromkeys(test for room in known if {*files} & {*room.files} for test in room.tests)
        chosen.append(Room(", ".join(files), files, [*tests]))
    chosen = [replace(room, tests=options.tests or room.tests) for room in chosen]
    if not chosen:
        parser.error(f"rooms are {', '.join(r.name for r in known)}")
    import numpy as np  # noqa: F401  # loaded before the fork, once
    import torch

    torch.set_num_threads(1)
    worst = 1.0
    for room in chosen:
        sample = options.sample if options.sample is not None else samples.get(room.name, 0)
        everything = [m for f in room.files for m in mutants(f)]
        some = [m for m in everything if (m.file, m.source, m.change) not in equivalent]
        some = [m for m in some if any(text in m.name for text in options.match)]
        if sample and sample < len(some):
            some = sorted(random.Random(options.seed).sample(some, sample), key=lambda m: (m.file, m.number))
        if options.list:
            print(*(m.name for m in some), sep="\n")
            continue
        worst = min(worst, _room(room, some, len(everything), options.jobs))
    return 0 if worst >= 0.85 else 1


def _room(room: Room, some: list[Mutant], of: int, jobs: int) -> float:
    paths = [p for t in room.tests for p in _paths(t)]
    codes = [mutated_code(m) for m in some]
    tasks = [(code, partial(_in_functions, mutant)) for mutant, code in zip(some, codes, strict=True)]
    outcomes = run_room(SRC, paths, tasks, jobs)
    failed, known = next(outcomes, (True, []))
    if failed:
        sys.exit(f"{room.name}: its tests fail without any mutant")
    survivors = []
    for i, (mutant, code, (caught, took)) in enumerate(zip(some, codes, outcomes, strict=True), 1):
        if not caught:
            tests = able_tests(mutant, known)
            timeout = SLACK_S + 5 * sum(seconds for test, seconds, _ in known if test in set(tests))
            caught, took = run_anew(SRC, mutant.file, code, tests, timeout)
        print(f"{i:4} {'noticed ' if caught else 'SURVIVED'} {mutant.name}   ({took:.0f} s)", flush=True)
        survivors += [] if caught else [mutant]
    score = 1 - len(survivors) / max(len(some), 1)
    print(f"{room.name}: {len(some) - len(survivors)} of {len(some)} noticed ({score:.0%}); {of} mutants in all")
    return score


def _paths(test: str) -> list[str]:
    if "::" in test:
        return [test]
    return [str(path) for path in sorted(ROOT.glob(f"{test}/test_*.py" if (ROOT / test).is_dir() else test))]


def _in_functions(mutant: Mutant, known: Known) -> list[str]:
    """The tests that call the changed function; none where no function has changed."""
    return [] if mutant.function is None else [t for t, _, c in known if mutant.function in c.get(mutant.file, ())]


if __name__ == "__main__":
    sys.exit(main())
