"""Which tests call which functions: so that a mutant is tried only on tests that can notice it, the quickest first.

A pytest plug-in that writes the functions that each test calls, by file and first line. What a fixture calls counts for
all tests of its file, because they may share the fixture.
"""

import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

Called = dict[str, set[int]]  # file, relative to the sources -> first lines of functions


class Recorder:
    """Records while the tests run."""

    def __init__(self, sources: Path):
        self.sources = f"{sources}/"
        self.seconds: dict[str, float] = {}
        self.calls: dict[str, set[tuple[str, int]]] = defaultdict(set)  # test, or file for its fixtures
        self.now: set[tuple[str, int]] = set()

    def _trace(self, frame: FrameType, event: str, argument: object) -> None:
        code = frame.f_code
        if code.co_filename.startswith(self.sources):
            self.now.add((code.co_filename, code.co_firstlineno))

    @pytest.hookimpl(hookwrapper=True)
    def pytest_runtest_protocol(self, item: pytest.Item, nextitem: object) -> Iterator[None]:
        self.now, began = self.calls[item.nodeid], time.monotonic()
        sys.settrace(self._trace)
        threading.settrace(self._trace)
        yield
        sys.settrace(None)
        threading.settrace(None)  # pyright: ignore[reportArgumentType]
        self.seconds[item.nodeid] = time.monotonic() - began

    @pytest.hookimpl(hookwrapper=True)
    def pytest_fixture_setup(self, fixturedef: object, request: Any) -> Iterator[None]:
        test, self.now = self.now, self.calls[request.node.nodeid.split("::")[0]]
        yield
        self.now = test

    def found(self) -> list[tuple[str, float, Called]]:
        """(test, seconds, what it calls), the quickest first."""
        made, shared = [], {place: calls for place, calls in self.calls.items() if "::" not in place}
        for test, seconds in sorted(self.seconds.items(), key=lambda item: item[1]):
            called: Called = defaultdict(set)
            fixtures = (calls for place, calls in shared.items() if test.startswith(place))
            for file, line in self.calls[test].union(*fixtures):
                called[file.removeprefix(self.sources)].add(line)
            made.append((test, seconds, called))
        return made


class Chosen:
    """Runs these tests only, in this order."""

    def __init__(self, tests: list[str]):
        self.place = {test: i for i, test in enumerate(tests)}

    def pytest_collection_modifyitems(self, items: list[pytest.Item]) -> None:
        items[:] = sorted((i for i in items if i.nodeid in self.place), key=lambda i: self.place[i.nodeid])
