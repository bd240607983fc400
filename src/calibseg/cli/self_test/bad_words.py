"""Wrong words on the command line: unknown names, numbers out of range, outputs that cannot be written."""

import shlex
from collections.abc import Iterator
from pathlib import Path

from calibseg.cli.self_test.bad_files import Bad

_SCORE = "score --predictions p --labels l -o out/scores.csv"
_CALIBRATE = "calibrate --predictions p --labels l -o out"
_PREPARE = "prepare --dataset phantom --option cases=4 -o out"
_TRAIN = "train recipe.toml -o new -q"
_WORDS = {
    _SCORE: """--metrics dcs | --metrics "" | --metrics , | --voxels foreground | --voxels "" | --bins 0 | --bins -3
        --bins many | --boundary-mm nan | --boundary-mm -1 | --empty maybe | --units inch | --option hd95
        --option hd95.definition=1 | --option hd95.no=1 | --option ece.bins=x | --tag los=nacl | --classes a
        --classes background,a,a | --regions x=7 | --regions x | --workers 0 | --patients nobody.csv | --kind logits
        --activation sigmoid | --activation relu | --format nrrd | --calibrator nowhere | --ignore-label 1
        --regions x=1+1 | --regions x=1,x=2 | --regions all=1 | --voxels all,all | --tag "loss= x" | --boundary-mm inf
        --classes background,all,b | --bins 1001 | --calibrator run/calibrators/temperature
        --raters l | --raters nowhere | --raters p | --members nowhere | --members l | --metrics rater_dsc
        --metrics pairwise_dsc | --option thresholded_dsc.levels=[0] | --option thresholded_dsc.levels=0.5x
        --option volume_crps.form=no | --option interior_confidence.band=99 | --members l | --members p --members p
        --metrics dsc --metrics ece | --bins 5 --bins 7 | --labels l2 | --work work | --subset validation""",
    "score --predictions p --raters l -o out/scores.csv": "--metrics dsc | --raters l",
    _CALIBRATE: """--method temprature | --method "" | --folds 1 | --folds x | --sample -1 | --seed -1
        --seed 99999999999999999999999 | --choose best | --fit-on everything | --option temperature
        --option temperature.no=1 | --apply nowhere | --option local_temperature.epochs=-1 --method local_temperature
        --kind logits | --workers 0 | --apply p | --sample 99999999999999999999999
        --method histogram --option histogram.bins=1000000000000
        --method histogram --option histogram.bins=2 --option histogram.bins=3
        --method class_temperature --option class_temperature.shrinkage=Infinity""",
    "nnunet calibrate model -o out": "--labels nowhere | --labels p | --predictions p --labels nowhere",
    "nnunet calibrate model --labels l -o out": """--method nothing | --folds 1 | --apply nowhere | --apply p
        --apply-labels l | --apply model
        --apply t --apply-labels l | --apply t --method local_temperature | --predictions l""",
    "nnunet calibrate": "model -o out | nowhere -o out | p --labels l -o out | raw --labels l -o out | model",
    "nnunet release": "model -o out | nowhere -o out | model -o work | p -o out | model",
    "calibrate run": """--method nothing | --subset test | --work nowhere | --method temperature --folds 0
        --kind logits | --regions x=1 | --ignore-label 9""",
    "decide fit --predictions p --labels l -o out/rules.json": """--risk fnr=0 | --risk fnr=1 | --risk fnr=nan
        --risk fnr | --risk fnr=0.01 | --risk no=0.4
        --risk fnr=0.4,no=1 | --risk fnr=0.4,confidence=1 | --volume 1 | --volume x
        --volume 0.6,scale=no | --volume "" | --margin coverage=2 | --margin coverage | --margin "" --margin ""
        --decision nothing | --decision ./nowhere.py | --volume 0.6 --calibrator nowhere | --volume 0.6 --masks p
        --volume 0.6 --patients nobody.csv | --volume 0.6 --kind logits | --volume 0.6 --volume 0.6 | --joint
        --volume 0.6 --regions x=7 | --volume 0.6,scale=relative,scale=spread | --risk fnr=[0.4] | --volume nan""",
    "decide fit run -o out/rules.json": """--risk fnr=0.1 | --volume 0.5 --subset nothing | --volume 0.5 --subset train
        --volume 0.5 --calibrator temperature | --volume 0.5 --calibrator nothing | --volume 0.5 --labels l""",
    "decide fit -o out/rules.json --margin confidence=0.6": """--masks p --labels l | --masks nowhere --labels l
        --masks l | --masks l --labels nowhere | --masks l --labels l --risk fnr=0.4
        --masks l --labels l --volume 0.4 --kind logits | run --risk fnr=0.6 --kind logits
        run --volume 0.5 --ignore-label 9 | --predictions p --labels l --volume 0.4 --subset test""",
    "decide apply rules.json -o out": """run --subset validation | run --subset nothing | --predictions p --labels l
        --masks l | run --predictions p | nowhere | --predictions nowhere""",
    "decide apply": "nowhere.json run -o out | scores.csv run -o out | rules.json run",
    "score run -o out.csv": """--subset nothing | --calibrator nothing | --metrics "" | --subset ../../run
        --calibrator ../../run | --members nowhere | --members p | --raters l --raters l2 | --members run
        --members run --members run | --tag loss=x | --kind logits | --classes a,b,c,d | --ignore-label 3 | --images l
        --format npz | --patients l | --regions x=1 | --activation sigmoid""",
    _PREPARE: """--option cases=-1 | --option cases=x | --option size=[4] | --option no=1 | --option cases
        --protocol slice_axis=diagonal | --protocol crop=[null,-1,4] | --protocol crop=7 | --protocol no=1
        --protocol spacing_mm=[nan,1,1] | --workers 0 | --root nowhere | --option cases=1000000000000
        --option size=[100000,100000,100000] | --option cases=2 --option seed=1 --option seed=2""",
    "prepare -o out": "--dataset nothing | --dataset nnunet | --dataset nnunet --root nowhere | --dataset ./no.py",
    "split work --overwrite": """--sizes 1 2 x | --sizes -1 1 1 | --sizes 0 0 0 | --sizes nan 1 1 | --folds 1
        --folds 99 | --folds 4 --leave-one-out | --folds 2 --validation 99 | --sizes inf 1 1 | --split-seed -1
        --train-sizes 1 --draws 1000000000 | --draws 5 | --sizes 4 2 2 --validation 1 | --validation 2""",
    "split": "nowhere | p | p --train-sizes x | p --train-sizes 8 --draws 0",
    _TRAIN: """--set loss.name=cross | --set loss.no=1 | --set loss.name=focal --set loss.gamma=-1
        --set loss.class_weight=[1.0,nan,1.0,1.0] | --set train.epochs=0 | --set train.epochs=x
        --set train.batch_size=0
        --set train.learning_rate=nan | --set train.learning_rate=-1 | --set seed=-1
        --set seed=99999999999999999999999 | --set network.name=vnet | --set network.width=0 | --set network.no=1
        --set augmentation.rotate_deg=inf | --set data.split=nothing | --set data.work=nowhere | --set no.such=1
        --set nothing | --device tpu | --devices 0 | --set train.select=luck | --set loss.dice_weight=nan
        --set loss.dice_weight=inf | --set network.width=100000000 | --set network.depth=200
        --set train.epochs=[[[ | --set train.epochs=1 --set train.epochs=2""",
    "train": "nothing | nowhere.toml | scores.csv | run --set seed=1",
    "predict run -o out": """--subset nothing | --input nowhere.nii.gz | --input scores.csv | --input MR=scan.nii.gz
        --input scan.nii.gz --input scan.nii.gz | --subset test --noise nan | --subset test --noise -1
        --subset test --seed -1 --noise 0.1 | --input scan.nii.gz --calibrator nothing | --subset test --batch-size 0
        --input scan.nii.gz --work work
        --subset test --device tpu | --input scan.nii.gz --flips diagonal | --subset test --work nowhere""",
    "predict": "nowhere --subset test -o out | p --subset test -o out | run | run run --subset test -o out",
    "export run -o out.onnx": """--calibrator nothing | --calibrator ../../run | --dimensions 4 | --spacing-mm 1 2 x
        --spacing-mm 1 1 1 | --dimensions 2""",
    "export": """nowhere -o out.onnx | p -o out.onnx | run -o out.txt | run -o work | run
        run/calibrators/temperature --calibrator none -o out.onnx | scores.csv -o out.onnx""",
    "rank": """nowhere.csv | scores.csv --metrics "" | scores.csv --metrics nothing | scores.csv --by nothing
        scores.csv --compare a,b | scores.csv --compare a | scores.csv --ties none | --method a=nowhere.csv | p
        scores.csv scores.csv --metrics dsc | scores.csv --metrics dsc@truth
        scores.csv --metrics dsc -o scores.csv""",
    "table": """nowhere.csv | scores.csv --metrics "" | scores.csv --metrics nothing
        scores.csv --metrics dsc -o scores.csv | scores.csv --export scores.csv | scores.csv --export run/log.csv""",
    "plot": """nothing scores.csv -o out.png | reliability nowhere.csv -o out.png | radar scores.csv -o out.docx
        reliability scores.csv --case nobody -o out.png | slices run --slice 999 -o out.png
        reliability scores.csv --voxels nothing -o out.png | slices run --case ../x -o out.png
        training run --metrics nothing -o out.png | multipliers run -o out.png""",
    "report": """nowhere -o out.html | p -o out.html | scores.csv -o out.html --paper nothing | scores.csv -o scores.csv
        run -o run/run.json""",
    "leaderboard add scores.csv --folder rows --method new --benchmark": """nothing | hippocampus | acdc
        hippocampus --link http://x | hippocampus --link "https://a b" """,
    "leaderboard add scores.csv --folder rows --benchmark hippocampus --method": """' ' | '<b>' | '' | a --method b""",
    "leaderboard": """show --benchmark nothing | add nowhere.csv --method a --benchmark acdc
        add p --method a --benchmark acdc | add scan.nii.gz --method a --benchmark acdc""",
    "view --no-open -o out.html": """nowhere | p | scans --scan nothing | scans --image nowhere.nii.gz
        scans --image scores.csv | scans --image l/case0.nii.gz""",
    "benchmark grid.toml -o out --plan": """--set axes.loss=[] | --set axes.los=["ce"] | --set axes.noise=[nan]
        --set axes.noise=[-1.0] | --set score.metrics=dcs | --set score.bins=0 | --set calibrate.sample=-1
        --set axes.calibrator=["nothing"] | --set axes.seed=[-1] | --set select.by=luck | --only nothing | --root a=b
        --root phantom | --set split.folds=1 | --set train.epochs=0 | --only , | --kept scores.csv
        --on slurm --slurm no | --set axes.seed=[0,0] | --only ce --only ls | --collect
        --set axes.seed=[0] --set axes.seed=[1] | --gpus 1 | --partition a | --slurm a=b""",
    "benchmark": """nothing | nowhere.toml | recipe.toml -o out --workers 0 | grid.toml -o out --threads 0
        grid.toml -o run --plan""",
    "new": """loss CamelCase | loss ce | nothing toy | loss ../toy | loss class | loss toy --folder scores.csv
        loss __init__ | loss a234567890b234567890c234567890d234567890e234567890f234567890g234567890h234567890i""",
    "explain": "nothing | loss:nothing | ./nowhere.py | prior:ce",
    "list": "nothing",
    "demo": "--epochs 0 | --loss nothing -o out | --epochs x | --seed -1 -o out",
}
_TAKEN = {  # outputs that are folders where files should be written, or files where folders should
    "a folder": ["score --predictions p --labels l -o work",
                 "decide fit run --volume 0.5 -o work", "rank scores.csv -o work", "table scores.csv -o work",
                 "report scores.csv -o work", "view scans --no-open -o work", "plot reliability scores.csv -o work"],
    "what others read": ["score --predictions p --labels l -o l/case0.nii.gz", "score run -o run/run.json",
                         "score run -o run/log.csv", "decide fit run --volume 0.5 -o run/run.json",
                         "view scans --no-open -o scans/scan.json"],
    "a file": ["nnunet calibrate model --labels l -o scores.csv", "nnunet calibrate model --labels l -o l/case0.nii.gz",
               "calibrate --predictions p --labels l -o scores.csv", "prepare --dataset phantom -o scores.csv",
               "train recipe.toml -q -o scores.csv", "predict run --subset test -o scores.csv",
               "predict run --input scan.nii.gz -o scores.csv",
               "decide apply rules.json run -o scores.csv", "benchmark grid.toml -o scores.csv",
               "demo -o scores.csv", "score --predictions p --labels l -o scores.csv/inside.csv",
               "rank scores.csv -o scores.csv/inside.csv", "report scores.csv -o scores.csv/inside.html",
               "export run -o scores.csv/inside.onnx"],
}  # fmt: skip


def bad_words() -> Iterator[Bad]:
    for start, endings in _WORDS.items():
        for line in endings.splitlines():
            for ending in line.split(" | "):
                yield Bad(ending.strip(), [*start.split(), *shlex.split(ending)])
    for kind, commands in _TAKEN.items():
        for words in commands:
            yield Bad(f"output that is {kind}", words.split())
    yield Bad("recipe that is rubbish", _TRAIN.split(), lambda: Path("recipe.toml").write_bytes(b"\xff\xfe = ["))
    yield Bad("recipe in Latin-1", _TRAIN.split(), lambda: Path("recipe.toml").write_bytes("é = 1".encode("latin-1")))
    yield Bad("grid that extends itself", ["benchmark", "grid.toml", "-o", "out"], _extends_itself)


def _extends_itself() -> None:
    Path("grid.toml").write_text('extends = "grid.toml"\n')
