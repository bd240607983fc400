"""Where rank, table, plot and report cannot write: one sentence, and nothing half-written."""

import errno
import os

import pytest
from typer.testing import CliRunner

from calibseg.cli import app
from calibseg.core.types import BadInput
from support.reporting import scores

COMMANDS = {
    "rank": ["-o", "{out}"],
    "table": ["-o", "{out}"],
    "export": ["--export", "{out}"],
    "plot": ["-o", "{out}"],
    "report": ["-o", "{out}"],
}
NAMES = {"rank": "ranks.csv", "table": "table.md", "export": "all.csv", "plot": "means.png", "report": "report.html"}


def call(verb, source, out):
    words = {"export": ["table"], "plot": ["plot", "means"]}.get(verb, [verb])
    told = [word.format(out=out) for word in COMMANDS[verb]]
    return CliRunner().invoke(app, [*words, str(source[0]), str(source[1]), *told])


@pytest.fixture(scope="module")
def source(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scores")
    return scores(folder / "a.csv", "ce"), scores(folder / "b.csv", "nacl", 0.05)


@pytest.mark.parametrize("verb", COMMANDS)
def test_an_output_that_is_a_folder_or_below_a_file_is_named(source, tmp_path, verb):
    (tmp_path / NAMES[verb]).mkdir()
    (tmp_path / "file").write_text("mine")
    before = sorted(tmp_path.rglob("*"))
    for out, message in (
        (tmp_path / NAMES[verb], "is a folder"),
        (tmp_path / "file" / NAMES[verb], "cannot be written"),
    ):
        result = call(verb, source, out)
        assert isinstance(result.exception, BadInput), result.exception
        assert str(out.name) in str(result.exception)
        assert message in str(result.exception)
    assert sorted(tmp_path.rglob("*")) == before
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("verb", COMMANDS)
def test_a_full_disk_leaves_what_was_there(source, tmp_path, verb, monkeypatch):
    out = tmp_path / NAMES[verb]
    old = source[0].read_text() if verb == "export" else "old"  # over another kind of file it would not be written
    out.write_text(old)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("calibseg.core.files.os.replace", full)
    result = call(verb, source, out)
    assert isinstance(result.exception, BadInput), result.exception
    assert "No space left on device" in str(result.exception)
    assert [path.name for path in tmp_path.iterdir()] == [out.name]
    assert out.read_text() == old


def test_empty_metrics_and_one_name_for_two_tables_are_refused(source):
    for words in (["rank"], ["table"], ["plot", "means", "-o", "x.png"]):
        result = CliRunner().invoke(app, [*words, str(source[0]), "--metrics", " , "])
        assert isinstance(result.exception, BadInput)
        assert "metric" in str(result.exception)
    result = CliRunner().invoke(app, ["rank", "--method", f"a={source[0]}", "--method", f"a={source[1]}"])
    assert "names 'a' twice" in str(result.exception)


@pytest.mark.parametrize("verb", ["rank", "table", "export", "report"])
def test_what_is_read_is_not_written_over(source, tmp_path, verb):
    mine = tmp_path / "mine.csv"
    mine.write_bytes(source[0].read_bytes())
    before = mine.read_bytes()
    words = {"export": ["table"]}.get(verb, [verb])
    done = CliRunner().invoke(app, [*words, str(mine), *(word.format(out=mine) for word in COMMANDS[verb])])
    assert isinstance(done.exception, BadInput), done.output
    assert "is read by this command" in str(done.exception) or "ends with .html" in str(done.exception)
    assert mine.read_bytes() == before


def test_a_method_is_not_compared_with_itself(source):
    done = CliRunner().invoke(app, ["rank", str(source[0]), str(source[1]), "--compare", "ce,ce"])
    assert "names one method twice" in str(done.exception)
