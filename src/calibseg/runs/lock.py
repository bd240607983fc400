"""One process at a time in a folder: a lock file that says who holds it.

On one machine the kernel's lock on the file decides: it ends with its process, however that dies, so that a stale lock
is taken over at once. Some shared file systems do not carry that lock to other machines; there the holder's sign of
life, the file's time, decides: a lock of another host is stale when it has not been touched for ten minutes. A job that
a scheduler ended on one host and started again on another takes the lock of its own earlier life over at once.
"""

import contextlib
import fcntl
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO

from calibseg.core.files import write_errors
from calibseg.core.types import BadInput

STALE_S = 600.0
TOUCH_S = 30.0


class Held(BadInput):
    """Another living process has the lock."""


class Lock:
    """A held lock; call `touch` often."""

    def __init__(self, path: Path):
        self.path, self._touched = path, time.monotonic()

    def touch(self) -> None:
        """Give a sign of life, at most every half minute."""
        if time.monotonic() - self._touched > TOUCH_S:
            self._touched = time.monotonic()
            with contextlib.suppress(FileNotFoundError):  # somebody removed it by hand
                os.utime(self.path)


@contextlib.contextmanager
def locked(path: Path) -> Iterator[Lock]:
    """Hold the lock file `path`; refuse where another living process holds it."""
    created = not path.parent.exists()
    with _locked_file(path) as file:
        holder, host = _holder(path), socket.gethostname()
        job, life = os.environ.get("SLURM_JOB_ID"), int(os.environ.get("SLURM_RESTART_COUNT", "0"))
        earlier = job is not None and holder.get("job") == job and holder.get("life", 0) < life
        if holder.get("host", host) != host and not earlier and time.time() - path.stat().st_mtime < STALE_S:
            raise Held(_refusal(path, holder))
        ours = {"pid": os.getpid(), "host": host, "job": job, "life": life}
        try:
            with write_errors(path):
                file.truncate(0)
                file.write(json.dumps(ours).encode())
            yield Lock(path)
        finally:
            if _holder(path) in (ours, {}):  # nobody has taken it over
                path.unlink(missing_ok=True)
            if created:
                with contextlib.suppress(OSError):  # the folder was made for the lock, and may hold something now
                    path.parent.rmdir()


def _locked_file(path: Path) -> IO[bytes]:
    """The open lock file, with the kernel's lock on it.

    Who ends removes the file while it still has the lock: who opened it before that has a file without a name.
    """
    while True:
        with write_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            file = path.open("ab+", buffering=0)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(file.fileno()).st_ino == path.stat().st_ino:
                return file
        except BlockingIOError:
            file.close()
            raise Held(_refusal(path, _holder(path))) from None
        except FileNotFoundError:
            pass
        except OSError as error:  # some cluster file systems are mounted without locks
            file.close()
            raise BadInput(f"{path}: cannot be locked ({error.strerror}); choose a folder of another disk") from error
        file.close()


@contextlib.contextmanager
def wait_for_lock(path: Path, wait: Callable[[str], None], ask_s: float = 0.5) -> Iterator[None]:
    """Hold the lock file `path` as soon as nobody else does, and give signs of life until the end.

    wait: is told once who holds it, if one has to wait
    """
    with contextlib.ExitStack() as stack:
        waited = False
        while True:
            try:
                lock = stack.enter_context(locked(path))
                break
            except Held as refusal:
                if not waited:
                    wait(str(refusal))
                    waited = True
                time.sleep(ask_s)
        ended = threading.Event()

        def live() -> None:
            while not ended.wait(TOUCH_S):
                lock.touch()

        thread = threading.Thread(target=live, daemon=True)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()


def _holder(path: Path) -> dict:
    with contextlib.suppress(ValueError, OSError):  # its holder may have removed it just now
        holder = json.loads(path.read_text(encoding="utf-8"))
        return holder if isinstance(holder, dict) else {}
    return {}


def _refusal(path: Path, holder: dict) -> str:
    who = f"process {holder.get('pid', '?')} on {holder.get('host', 'an unknown host')}"
    return f"{path.parent}: {who} works in this folder; wait for it, end it, or choose another folder"
