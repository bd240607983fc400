"""Locks: one holder at a time, nothing left behind, and nobody holds a file whose name is gone."""

import errno
import threading
import time

import pytest

from calibseg.core.types import BadInput
from calibseg.runs import lock as module
from calibseg.runs.lock import locked, wait_for_lock


def test_a_lock_is_gone_when_its_work_is_done_or_has_failed(tmp_path):
    path = tmp_path / "run" / "lock"

    def fail() -> None:
        with locked(path):
            assert path.is_file()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert not path.exists()


def test_many_who_wait_hold_the_lock_one_after_the_other(tmp_path):
    path, inside, most, done = tmp_path / "lock", [0], [0], []

    def work() -> None:
        with wait_for_lock(path, lambda told: None, ask_s=0.001):
            inside[0] += 1
            most[0] = max(most[0], inside[0])
            time.sleep(0.002)
            inside[0] -= 1
            done.append(1)

    threads = [threading.Thread(target=work) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (most[0], len(done), path.exists()) == (1, 12, False)


def test_a_lock_whose_name_was_removed_meanwhile_is_taken_anew(tmp_path, monkeypatch):
    """Between opening and locking, the last holder removes the file: what was opened is nobody's any more."""
    path, flock = tmp_path / "lock", module.fcntl.flock
    calls = []

    def removed_once(file, how):
        calls.append(how)
        if len(calls) == 1:
            path.unlink()
        flock(file, how)

    monkeypatch.setattr(module.fcntl, "flock", removed_once)
    with locked(path):
        assert path.is_file()
        assert len(calls) == 2


def test_a_folder_that_is_a_file_is_one_sentence(tmp_path):
    (tmp_path / "run").write_text("no folder")
    with pytest.raises(BadInput, match="lock: cannot be written"), locked(tmp_path / "run" / "lock"):
        pass


def test_a_lock_that_cannot_be_written_is_told_and_not_waited_for(tmp_path):
    def wait(told: str) -> None:
        raise AssertionError(f"waits: {told}")

    (tmp_path / "locks").write_text("a file where the folder of locks should be")
    with (
        pytest.raises(BadInput, match=r"cell\.lock: cannot be written"),
        wait_for_lock(tmp_path / "locks/cell.lock", wait),
    ):
        pass


def test_a_file_system_without_locks_is_told_in_one_sentence(tmp_path, monkeypatch):
    def flock(file: object, how: int) -> None:
        raise OSError(errno.ENOSYS, "Function not implemented")

    monkeypatch.setattr(module.fcntl, "flock", flock)
    with (
        pytest.raises(BadInput, match=r"lock: cannot be locked \(Function not implemented\)"),
        locked(tmp_path / "lock"),
    ):
        pass
