"""Scoring bad input: one sentence, exit code 2, no file; or what was left out is listed."""

import json
import re

import numpy as np
import pytest

from calibseg.analysis import table
from support.scored_folders import random_case, save, save_case, spoil

BAD = {
    "does not sum to 1": (
        lambda f: save_case(f, "a", *spoil(lambda p: p[1].__setitem__((1, 2, 3), p[1, 1, 2, 3] + 0.25))),
        r"p/a\.npz: probabilities sum to 1\.25 instead of 1 at voxel \(x 1, y 2, z 3\) of the NIfTI file",
    ),
    "NaN": (
        lambda f: save_case(f, "a", *spoil(lambda p: p[1].__setitem__((0, 0, 0), np.nan))),
        r"p/a\.npz: .*NaN.* at voxel \(x 0, y 0, z 0\)",
    ),
    "negative": (
        lambda f: save_case(f, "a", *spoil(lambda p: p[:, 0, 0, 0].__setitem__(slice(None), [-1.0, 1.0, 1.0]))),
        r"p/a\.npz: probabilities are -1, 1, 1 at voxel \(x 0, y 0, z 0\)",
    ),
    "label outside": (
        lambda f: save_case(f, "a", random_case(0)[0], random_case(0)[1] + 1),
        r"l/a\.nii\.gz holds the label 3 at voxel \(x \d, y \d, z \d\) of the NIfTI file, which is none of the 3",
    ),
    "other shape": (
        lambda f: save_case(f, "a", random_case(0)[0], random_case(0, (9, 8, 6))[1]),
        r"p/a\.npz has the shape \(3, 7, 8, 9\), but .*l/a\.nii\.gz asks for \(classes, 6, 8, 9\)",
    ),
    "other place": (
        lambda f: (
            save(f / "p" / "a.nii.gz", np.moveaxis(random_case(0)[0], 0, -1), np.diag([2.0, 1, 1, 1])),
            save(f / "l" / "a.nii.gz", random_case(0)[1].astype(np.uint8)),
        ),
        r"p/a\.nii\.gz lies elsewhere than .*l/a\.nii\.gz: their affines put one corner 8 mm apart",
    ),
    "missing pair": (
        lambda f: (save_case(f, "a", *random_case(0)), (f / "l" / "a.nii.gz").rename(f / "l" / "b.nii.gz")),
        r"p/a\.npz has no label in .*l: no a\.nii\.gz there \(1 more like it",
    ),
    "classes without the word": (
        lambda f: (
            save(f / "p" / "a_0.nii.gz", random_case(0)[0][0]),
            save(f / "l" / "a.nii.gz", random_case(0)[1].astype(np.uint8)),
        ),
        r"p/a_0\.nii\.gz has no label in .*l: no a_0\.nii\.gz there; files of single classes are called CASE_class0",
    ),
    "no labels": (
        lambda f: (save_case(f, "a", *random_case(0)), (f / "l" / "a.nii.gz").unlink()),
        r"l holds no label file",
    ),
    "no folder": (lambda f: None, r"no folder .*p"),
}


@pytest.mark.parametrize(("make", "message"), BAD.values(), ids=BAD.keys())
def test_bad_input_is_one_sentence_exit_code_2_and_no_file(tmp_path, calibseg, make, message):
    make(tmp_path)
    output = tmp_path / "out" / "scores.csv"
    code, _, err = calibseg("score", "--predictions", tmp_path / "p", "--labels", tmp_path / "l", "-o", output)
    assert code == 2
    assert len(err.strip().splitlines()) == 1
    assert re.search(message, err), err
    assert not output.parent.exists()


@pytest.mark.parametrize("wrong", ["label", "score"])
def test_a_voxel_is_named_as_the_file_counts_however_its_axes_run(wrong, tmp_path, calibseg):
    affine = np.array([[0, 0, -2, 0], [3, 0, 0, 0], [0, -1, 0, 0], [0, 0, 0, 1.0]])  # y, then down, then to the left
    p, labels = random_case(0)
    if wrong == "label":
        labels = labels.copy()
        labels[4, 1, 2] = 9
    else:
        p = p.copy()
        p[:, 4, 1, 2] = np.nan
    save(tmp_path / "p" / "a.nii.gz", np.moveaxis(p, 0, -1), affine)
    save(tmp_path / "l" / "a.nii.gz", labels.astype(np.uint8), affine)
    for command in ("score", "calibrate"):
        out = tmp_path / ("out.csv" if command == "score" else "out")
        given = ("--predictions", tmp_path / "p", "--labels", tmp_path / "l", "-o", out)
        code, _, err = calibseg(command, *given, *(("--method", "temperature") if command == "calibrate" else ()))
        assert code == 2
        assert "at voxel (x 4, y 1, z 2) of the NIfTI file" in err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--voxels", "foreground"], "no voxel rule named 'foreground'. Known: truth, predicted, union, all, boundary"),
        (["--metrics", "dcs"], "no metric named 'dcs'. Did you mean 'dsc'?"),
        (
            ["--option", "hd95.definitoin=pooled"],
            "no option of metric 'hd95' named 'definitoin'. Did you mean 'definition'? Known: definition, empty",
        ),
        (["--option", "hd95"], "--option 'hd95' is not of the form METRIC.OPTION=VALUE"),
        (["--tag", "los=nacl"], "no experiment column named 'los'"),
        (["--classes", "background,a"], "has 3 channels"),
        (["--classes", "background,a,a"], "two classes are called 'a'"),
        (["--regions", "x=7"], "region 'x' holds class 7; the foreground classes are 1 to 2"),
        (["--workers", "0"], "--workers is 0"),
        (["--patients", "nobody.csv"], "nobody.csv cannot be read as a table of patients"),
        (["--activation", "sigmoid"], "3 sigmoid channels: --classes or --regions must say what they stand for"),
    ],
)
def test_wrong_options_are_one_sentence_and_no_file(folder, calibseg, arguments, message):
    output = folder / "out" / "scores.csv"
    given = ("score", "--predictions", folder / "p", "--labels", folder / "l", "-o", output, *arguments)
    code, _, err = calibseg(*given)
    assert code == 2
    assert message in err
    assert not output.parent.exists()


def test_skip_bad_goes_on_and_lists_what_it_left_out(folder, calibseg):
    save_case(folder, "case1", *spoil(lambda p: p[1].__setitem__((0, 0, 0), np.nan)))
    (folder / "l" / "case2.nii.gz").unlink()
    given = ("score", "--predictions", folder / "p", "--labels", folder / "l", "--metrics", "dsc,ece")
    code, out, _ = calibseg(*given, "--skip-bad", "-o", folder / "out" / "scores.csv")
    assert code == 0
    assert set(values_cases(folder / "out" / "scores.csv")) == {"case0", "case3"}
    assert "left out:" in out
    left_out = json.loads((folder / "out" / "scores.meta.json").read_text())["left_out"]
    assert ["case2.npz has no label" in left_out[0], "case1.npz" in left_out[1], len(left_out)] == [True, True, 2]


def values_cases(path):
    rows = table.read(path).rows
    return rows.loc[rows["scope"] == "case", "case"].tolist()


def test_skip_bad_with_nothing_left_is_an_error(tmp_path, calibseg):
    save_case(tmp_path, "a", *spoil(lambda p: p[1].__setitem__((0, 0, 0), np.nan)))
    given = ("score", "--predictions", tmp_path / "p", "--labels", tmp_path / "l", "--skip-bad")
    code, _, err = calibseg(*given, "-o", tmp_path / "out" / "scores.csv")
    assert code == 2
    assert "could be scored: " in err
    assert not (tmp_path / "out").exists()


def test_files_with_different_numbers_of_classes_are_not_mixed(folder, calibseg):
    save_case(folder, "case3", *random_case(3, classes=4))
    given = ("score", "--predictions", folder / "p", "--labels", folder / "l", "--metrics", "dsc")
    code, _, err = calibseg(*given, "-o", folder / "out" / "scores.csv")
    assert code == 2
    assert "the prediction of case case3 has 4 classes, but that of case case0 has 3" in err
