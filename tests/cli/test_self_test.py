"""`calibseg doctor --self-test`: its own judgement, and everything that it tries."""

from pathlib import Path

import pytest

from calibseg.cli.self_test import self_test, try_command


@pytest.fixture
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_refusal_in_one_sentence_is_no_fault(here):
    assert try_command(["explain", "no_such_loss"]) == ""


def test_what_is_done_instead_of_refused_is_a_fault(here):
    assert "exit code 0 instead of 2" in try_command(["list", "losses"])


def test_a_crash_is_a_fault_with_its_place(here, monkeypatch):
    monkeypatch.setattr("calibseg.cli.self_test.run_command", lambda words: (0, "", "KeyError: 'a' (x.py:7)"))
    assert try_command(["list", "losses"]) == "crashed: KeyError: 'a' (x.py:7)"


def test_a_file_left_behind_is_a_fault(here, monkeypatch):
    def refuse(name, here):
        Path("left").write_text("")
        raise SystemExit(2)

    monkeypatch.setattr("calibseg.cli.usage.default_folder", refuse)
    assert "refused without a word" in try_command(["new", "loss", "toy"])
    monkeypatch.setattr("calibseg.cli.self_test.run_command", lambda words: (Path("b").touch() or 2, "error: x", ""))
    assert try_command(["new", "loss", "toy"]) == "left behind or changed: ./b"


def test_every_wrong_input_is_refused_by_every_command_in_one_sentence():
    result = self_test()
    assert result.tried.total() >= 150
    assert not result.faults
