"""How the tests of a room are run on mutants: quickly in a copy of a process that has collected them, or anew.

Importing and collecting costs more than most tests. So one process collects the tests of a room and is forked for each
mutant; in the fork the changed function's code takes the place of the old one. What cannot be changed in this way (a
constant of a module, a default) and what survives (its function may have run at import) is tried anew: in a process in
which an import hook serves the changed module.
"""

import gc
import importlib.abc
import importlib.machinery
import importlib.util
import os
import pickle
import signal
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import CodeType, FunctionType
from typing import Any

import pytest
from covering_tests import Called, Chosen, Recorder

Known = list[tuple[str, float, Called]]  # (test, seconds, the functions that it calls), the quickest first
SLACK_S = 60.0


def run_room(sources: Path, paths: list[str], tasks: list[tuple[CodeType, Callable[[Known], list[str]]]], jobs: int):
    """First whether a test fails without any mutant, and what is known of the tests; then, for each mutant in order,
    whether a test noticed (None: it cannot be tried here) and the seconds that it took."""
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reader)
        _silence()
        with os.fdopen(writer, "wb") as out:
            _pytest(sources, paths, _Loop(sources, tasks, jobs, lambda fact: (pickle.dump(fact, out), out.flush())))
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as source:
        try:
            while True:
                yield pickle.load(source)  # of our own child
        except EOFError:
            os.waitpid(child, 0)


def run_anew(sources: Path, file: str, code: CodeType, tests: list[str], timeout: float) -> tuple[bool, float]:
    """Whether a test failed (or the time ran out), and seconds; everything but torch and numpy is imported anew."""

    def work() -> bool:
        sys.meta_path.insert(0, _Hook(sources, file, code))
        return bool(_pytest(sources, list(dict.fromkeys(test.split("::")[0] for test in tests)), Chosen(tests)))

    return _forked(work, timeout) if tests else (False, 0.0)


class _Loop:
    """A pytest plug-in: in place of running the tests once, runs them in forks."""

    def __init__(self, sources: Path, tasks: list[Any], jobs: int, tell: Callable[[Any], object]):
        self.sources, self.tasks, self.jobs, self.tell = sources, tasks, jobs, tell

    def pytest_runtestloop(self, session: pytest.Session) -> bool:
        failed, known = _recorded(session, self.sources)
        self.tell((failed, known))
        if failed:
            return True
        items, seconds = {item.nodeid: item for item in session.items}, {test: took for test, took, _ in known}

        def tried(task: tuple[CodeType, Callable[[Known], list[str]]]) -> tuple[bool | None, float]:
            code, able = task
            tests = able(known)
            if not tests:
                return None, 0.0
            timeout = SLACK_S + 5 * self.jobs * sum(seconds[test] for test in tests)
            return _forked(lambda: _run(session, [items[t] for t in tests]), timeout, lambda: put_in_place(code))

        with ThreadPoolExecutor(self.jobs) as pool:
            for outcome in pool.map(tried, self.tasks):
                self.tell(outcome)
        return True


def put_in_place(new: CodeType) -> bool:
    """Give every function of a module the code that it has in the changed module; false: something else has changed."""
    codes = {(code.co_qualname, code.co_firstlineno): code for code in _codes(new)}
    try:
        for thing in gc.get_objects():
            if isinstance(thing, FunctionType) and thing.__code__.co_filename == new.co_filename:
                thing.__code__ = codes[thing.__code__.co_qualname, thing.__code__.co_firstlineno]
    except (KeyError, ValueError):
        return False
    return True


def _codes(code: CodeType) -> Iterator[CodeType]:
    yield code
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _codes(constant)


def _run(session: pytest.Session, items: list[pytest.Item]) -> bool:
    """Whether one of them fails; the first that does ends it."""
    for item, after in zip(items, [*items[1:], None], strict=True):
        item.config.hook.pytest_runtest_protocol(item=item, nextitem=after)
        if session.testsfailed:
            return True
    return False


def _recorded(session: pytest.Session, sources: Path) -> tuple[bool, Known]:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        recorder = Recorder(sources)
        session.config.pluginmanager.register(recorder)
        failed = _run(session, session.items)
        with os.fdopen(writer, "wb") as out:
            pickle.dump((failed, recorder.found()), out)
        os._exit(0)
    os.close(writer)
    with os.fdopen(reader, "rb") as source:
        answer = pickle.load(source)  # of our own child
    os.waitpid(child, 0)
    return answer


def _forked(work: Callable[[], bool], timeout: float, begin: Callable[[], bool] = lambda: True) -> Any:
    """What `work` says in a fork (True where it dies or takes too long; None where `begin` says no), and seconds."""
    began, child = time.monotonic(), os.fork()
    if child == 0:
        os.setsid()
        _silence()
        try:
            os._exit(int(work()) if begin() else 9)
        except BaseException:
            os._exit(1)
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            code = os.waitstatus_to_exitcode(status)
            return None if code == 9 else code != 0, time.monotonic() - began
        if time.monotonic() - began > timeout:
            os.killpg(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return True, time.monotonic() - began
        time.sleep(0.02)


def _silence() -> None:
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.dup2(nowhere, 2)


def _pytest(sources: Path, paths: list[str], plugin: object) -> int:
    sys.path.insert(0, str(sources))
    os.environ["PYTHONPATH"] = str(sources)
    options = ["-x", "-q", "-s", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow", "--no-header"]
    return int(pytest.main([*options, *paths], [plugin]))


class _Hook(importlib.abc.MetaPathFinder):
    """Serves the mutated module, and everybody else the usual ones."""

    def __init__(self, sources: Path, file: str, code: CodeType):
        self.name = file.removesuffix(".py").replace("/", ".").removesuffix(".__init__")
        self.code, self.path = code, str(sources / file)

    def find_spec(self, fullname: str, path: object = None, target: object = None):
        if fullname != self.name:
            return None
        hook = self

        class Loader(importlib.machinery.SourceFileLoader):
            def get_code(self, fullname: str):  # pyright: ignore[reportIncompatibleMethodOverride]
                return hook.code

        loader = Loader(fullname, self.path)
        return importlib.util.spec_from_file_location(
            fullname,
            self.path,
            loader=loader,
            submodule_search_locations=[str(Path(self.path).parent)] if self.path.endswith("__init__.py") else None,
        )
