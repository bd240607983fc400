"""Stop signals: Ctrl-C, a scheduler's warning before it takes the machine away, or `kill`."""

import signal
import threading
from typing import Any

SIGNALS = ("SIGTERM", "SIGINT", "SIGUSR2")  # SLURM warns of the end with one of these


class StopSignals:
    """Inside `with`, remembers which signal came instead of dying of it; a second Ctrl-C is obeyed at once."""

    def __init__(self) -> None:
        self.asked: str | None = None
        self._before: dict[int, Any] = {}

    def __enter__(self) -> "StopSignals":
        if threading.current_thread() is threading.main_thread():  # Python allows handlers nowhere else
            numbers = [getattr(signal, name) for name in SIGNALS if hasattr(signal, name)]
            self._before = {number: signal.signal(number, self._ask) for number in numbers}
        return self

    def __exit__(self, *error: object) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)

    def _ask(self, number: int, frame: object) -> None:
        if self.asked and number == signal.SIGINT:
            raise KeyboardInterrupt
        self.asked = signal.Signals(number).name
