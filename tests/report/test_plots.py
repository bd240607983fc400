"""Every figure is drawn and saved in every format, the same each time; the command says what it cannot do."""

import subprocess
import sys
import zlib

import pandas as pd
import pytest

from calibseg.cli.plots import KINDS as LISTED
from calibseg.core.types import BadInput
from calibseg.report.matplotlib import KINDS, Request, plot, save
from calibseg.report.matplotlib import runs as plots_runs
from calibseg.report.matplotlib.style import FORMATS
from calibseg.stages.score.options import ScoringOptions, WorkerOptions
from calibseg.stages.score.stage import score_run
from support.made_runs import make_run, make_work

QUICK = ("dsc", "hd95", "ece", "cece", "nll", "brier", "overconfidence", "underconfidence", "signed_gap",
         "soft_dice_confidence")  # fmt: skip


@pytest.fixture(scope="module")
def bench(tmp_path_factory):
    """A folder with four scored runs, two of them of one loss."""
    folder = tmp_path_factory.mktemp("bench")
    work = make_work(folder / "work")
    parts = {"test": 1.0, "test-noise0.05-seed0": 0.6}
    make_run(folder / "runs" / "ce", work, "ce", 3.0, parts=parts)
    make_run(folder / "runs" / "crac", work, "crac", 2.0, parts=parts)
    for margin in (5.0, 10.0):
        make_run(folder / "margins" / f"m{margin:g}", work, "mbls", 2.0 + margin / 10, {"margin": margin})
    rules = ScoringOptions(voxels=("truth", "predicted", "all", "boundary"), metrics=QUICK)
    for run in (*(folder / "runs").iterdir(), *(folder / "margins").iterdir()):
        for part in parts if run.parent.name == "runs" else ("test",):
            score_run(run, subset=part, scoring=rules, workers=WorkerOptions(1))
    return folder


def asked(kind, bench):
    return Request((bench / "margins",), option="loss.margin") if kind == "sensitivity" else Request((bench,))


@pytest.mark.parametrize("kind", KINDS)
def test_every_figure_is_drawn_and_saved_in_three_formats(kind, bench, tmp_path):
    figure = plot(kind, asked(kind, bench))
    assert figure.get_figwidth() <= 7.3  # a page, in inches
    heads = {"png": b"\x89PNG", "svg": b"<?xml", "pdf": b"%PDF"}
    for ending in FORMATS:
        path = save(figure, tmp_path / "deep" / f"{kind}.{ending}")
        assert path.read_bytes().startswith(heads[ending])
    assert [found.name for found in (tmp_path / "deep").iterdir() if found.name.startswith(".")] == []


@pytest.mark.parametrize("ending", FORMATS)
def test_a_figure_has_the_same_bytes_each_time(ending, bench, tmp_path):
    first, second = (
        save(plot("reliability", Request((bench,))), tmp_path / f"{n}.{ending}").read_bytes() for n in (1, 2)
    )
    assert first == second


def test_text_stays_text(bench, tmp_path):
    text = save(plot("ranks", Request((bench,))), tmp_path / "r.svg").read_text(encoding="utf-8")
    assert "sum-rank" in text
    assert "CRaC" in text
    raw = save(plot("ranks", Request((bench,))), tmp_path / "r.pdf").read_bytes()
    streams = [part.partition(b"endstream")[0].strip(b"\r\n") for part in raw.split(b"stream\n")[1:]]
    assert not any(b"/Type3" in part for part in (raw, *(_unpacked(part) for part in streams)))


def _unpacked(stream):
    try:
        return zlib.decompress(stream)
    except zlib.error:
        return stream


def test_figures_show_the_methods_they_were_given(bench):
    figure = plot("reliability", Request((bench,)))
    assert [axis.get_title() for axis in figure.axes] == ["CE", "CRaC"]
    figure = plot("reliability", Request(named={"mine": bench / "runs" / "ce"}, voxels="all"))
    assert [axis.get_title() for axis in figure.axes] == ["mine"]
    figure = plot("training", Request((bench / "margins",)))
    assert {text.get_text() for text in figure.legends[0].get_texts()} == {"MbLS (margin=5.0)", "MbLS (margin=10.0)"}


def test_drawing_leaves_the_style_of_the_user_alone(bench):
    import matplotlib

    before = dict(matplotlib.rcParams)
    plot("radar", Request((bench,)))
    assert dict(matplotlib.rcParams) == before


def test_nothing_imports_torch(bench):
    code = "import sys; from calibseg.report.matplotlib import Request, plot; import calibseg.report.text_tables\n"
    code += f"plot('ranks', Request(({str(bench)!r},)))\n"  # slices count voxels, as metrics do, which takes torch
    code += "assert 'torch' not in sys.modules and 'matplotlib.pyplot' not in sys.modules"
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr


def test_the_command_lists_every_figure(calibseg):
    code, out, _ = calibseg("plot", "list")
    assert code == 0
    for kind in KINDS:
        assert kind in out
        assert kind in LISTED


def test_the_command_draws(calibseg, bench, tmp_path):
    code, out, _ = calibseg("plot", "reliability", bench, "--voxels", "all", "-o", tmp_path / "r.svg")
    assert (code, out.strip()) == (0, f"wrote {tmp_path / 'r.svg'}")
    assert "every voxel" in (tmp_path / "r.svg").read_text(encoding="utf-8")


def test_the_command_sets_tables(calibseg, bench, tmp_path):
    code, out, _ = calibseg("table", bench, "--metrics", "dsc,ece@truth", "--interval", "none")
    assert code == 0
    assert out.splitlines()[0] == "| method | DSC ↑ | ECE, truth ↓ |"
    assert out.count("**") == 4
    code, out, _ = calibseg("table", bench, "--metrics", "dsc", "-o", tmp_path / "t.tex")
    assert code == 0
    assert r"\toprule" in (tmp_path / "t.tex").read_text(encoding="utf-8")
    paper = tmp_path / "paper.csv"
    paper.write_text("dataset,method,metric,value\nmade,ce,dsc,0.867\n", encoding="utf-8")
    code, out, _ = calibseg("table", bench, "--metrics", "dsc", "--paper", paper)
    assert code == 0
    assert "| 0.867 |" in out


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("relibility", "BENCH", "-o", "x.pdf"), "no figure named 'relibility'. Did you mean 'reliability'? Known:"),
        (("ranks", "BENCH"), "say where to write the figure, as in -o ranks.pdf"),
        (("ranks", "BENCH", "-o", "x.gif"), "x.gif: no figure format named 'gif'. Known: png, svg, pdf"),
        (("ranks", "-o", "x.pdf"), "no score table is given: name a scores.csv, a run folder or a benchmark folder"),
        (("training", "-o", "x.pdf"), "no run is given: name a run folder or a benchmark folder"),
        (("ranks", "BENCH", "--metrics", "dcs", "-o", "x.pdf"), "no metric named 'dcs' in the table. Known: brier, "),
        (("ranks", "BENCH/none", "-o", "x.pdf"), "no score table, run folder or benchmark folder BENCH/none"),
        (("reliability", "BENCH", "--voxels", "truht", "-o", "x.pdf"), "no voxel rule named 'truht'. Did you mean 'tr"),
        (("critical-difference", "BENCH/runs/ce", "-o", "x.pdf"), "compares methods, and there is only ce"),
        (("sensitivity", "BENCH", "-o", "x.pdf"), "say which option was varied, as in --option loss.margin"),
        (("sensitivity", "BENCH", "--option", "loss", "-o", "x.pdf"), "an option that is a number; 'loss'"),
        (("noise", "BENCH", "--metrics", "dsc,dsc", "-o", "x.pdf"), "against another, like dsc,ece: not dsc,"),
        (("multipliers", "BENCH/runs/ce", "-o", "x.pdf"), "none of ce logs multipliers: only losses such as crac"),
        (("slices", "BENCH", "--case", "nobody", "-o", "x.pdf"), "'nobody' is not predicted; run calibseg predict"),
        (("logits", "BENCH", "--subset", "validation", "-o", "x.pdf"), "holds no logits; run calibseg predict first"),
        (("noise", "BENCH/margins", "-o", "x.pdf"), "BENCH/margins"),
    ],
)  # fmt: skip
def test_what_cannot_be_drawn_is_one_sentence(calibseg, bench, tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.chdir(tmp_path)
    code, _, err = calibseg("plot", *(str(word).replace("BENCH", str(bench)) for word in arguments))
    assert code == 2
    assert sentence.replace("BENCH", str(bench)) in err
    assert err.count("\n") == 1
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_to_is_named(bench, tmp_path):
    (tmp_path / "file").write_text("", encoding="utf-8")
    with pytest.raises(BadInput, match="cannot be written"):
        save(plot("penalties", Request()), tmp_path / "file" / "x.png")


def test_every_curve_inside_is_seen_whole():
    """Panels share their height; the first must not fix it before the others are drawn."""
    rows = [("mild", epoch, 0.99, 1.0) for epoch in (1, 2)] + [("harsh", epoch, 0.7, 1.0) for epoch in (1, 2)]
    figure = plots_runs.interior(pd.DataFrame(rows, columns=["method", "epoch", "confidence", "accuracy"]))
    assert all(axis.get_ylim()[0] < 0.7 for axis in figure.axes)


def test_the_sizes_of_noise_hide_no_curve(bench):
    figure = plot("noise", Request((bench,)))
    assert all(axis.get_legend() is None for axis in figure.axes)
