"""calibseg rank on a screen of 80 columns: the best methods, no word broken; some methods alone."""

import pytest
from typer.testing import CliRunner

from calibseg.analysis import table
from calibseg.cli import app
from support.score_rows import scores


@pytest.fixture(scope="module")
def many(tmp_path_factory):
    """Thirty methods: ten losses, each alone and with two calibrators."""
    names = [f"a_long_loss_{number}" for number in range(10)]
    parts = []
    for calibrator in ("none", "temperature", "vector"):
        values = {
            name: {
                metric: [0.1 + number / 100 + case / 50 for case in range(4)]
                for metric in ("dsc", "hd95", "ece@predicted", "cece@predicted", "nll@all", "brier@all")
            }
            for number, name in enumerate(names)
        }
        parts.append(scores(values, dataset="toy", network="unet").rows.assign(calibrator=calibrator))
    path = tmp_path_factory.mktemp("rank") / "scores.csv"
    table.write(table.ScoreTable(table.concat(parts), {"datasets": {}}, {}, "made"), path)
    return path


def run(*words):
    result = CliRunner().invoke(app, ["rank", *map(str, words)], env={"COLUMNS": "80"})
    return result, result.output


def test_twenty_of_thirty_are_printed_in_80_columns_and_all_are_written(many, tmp_path):
    metrics = "dsc,hd95,ece,cece,nll,brier"
    result, text = run(many, "--metrics", metrics, "-o", tmp_path / "ranks.csv")
    assert result.exit_code == 0, text
    tables = [line for line in text.splitlines() if not line.startswith(("the best", "wrote", "undefined"))]
    assert max(map(len, tables)) <= 80
    whole = {f"a_long_loss_{number}{end}" for number in range(10) for end in ("", "+temperature", "+vector")}
    for line in tables:
        assert all(word in whole for word in line.split() if word.startswith("a_long")), line
    assert "the best 20 of 30 are shown" in text
    assert (tmp_path / "ranks.csv").read_text().count("sum-rank") == 30


def test_rank_table_and_radar_take_what_was_measured_unless_asked_otherwise(tmp_path):
    values = {name: {"dsc": [0.8, 0.9], "ece@predicted": [0.1, 0.2], "nll@all": [0.3, 0.4]} for name in ("ce", "nacl")}
    path = tmp_path / "scores.csv"
    table.write(scores(values, dataset="toy", network="unet"), path)
    for command, *more in (["rank"], ["table"], ["plot", "radar", "-o", str(tmp_path / "radar.png")]):
        words = [command, *more[:1], str(path), *more[1:]]
        result = CliRunner().invoke(app, words)
        assert result.exit_code == 0, result.output
        refused = CliRunner().invoke(app, [*words, "--metrics", "dsc,hd95"])
        assert "no metric named 'hd95'" in str(refused.exception)


def test_only_calibrator_and_top_choose_what_is_ranked_and_shown(many):
    result, text = run(many, "--metrics", "dsc", "--only", "a_long_loss_1,a_long_loss_2", "--calibrator", "none,vector")
    assert result.exit_code == 0, text
    assert {w for w in text.split() if w.startswith("a_long")} == {
        "a_long_loss_1", "a_long_loss_1+vector", "a_long_loss_2", "a_long_loss_2+vector",
    }  # fmt: skip
    result, text = run(many, "--metrics", "dsc", "--top", "1")
    assert "the best 1 of 30 are shown; all, with -o ranks.csv" in text


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--only", "a_long_los_1"), "no method in .* named 'a_long_los_1'. Did you mean 'a_long_loss_1'"),
        (("--calibrator", "tmperature"), "no calibrator in .* named 'tmperature'. Did you mean 'temperature'"),
        (("--only", "a_long_loss_1+vector", "--calibrator", "none"), "no scores of .*leave one of the two choices out"),
    ],
)
def test_a_method_that_is_not_there_is_refused(many, words, said):
    result, _ = run(many, "--metrics", "dsc", *words)
    with pytest.raises(type(result.exception), match=said):
        raise result.exception


@pytest.mark.parametrize("option", ["--metrics", "--only", "--calibrator"])
def test_an_empty_list_is_not_taken_for_everything(many, option):
    result, _ = run(many, option, ",")
    assert f"{option} is the empty list ','" in str(result.exception)
