"""A trained model that needs nothing of ours: the networks are nnU-Net's own, only the trainer's name is not."""

import shutil
from pathlib import Path

from calibseg.core.files import temporary_folder, write_errors
from calibseg.core.types import BadInput
from calibseg.integrations.nnunet.checkpoint import read_checkpoint, write_checkpoint
from calibseg.integrations.nnunet.model_folder import ALL, ModelFolder
from calibseg.integrations.nnunet.trainers import PREFIX, STATE


def release(model: Path, output: Path) -> list[Path]:
    """Write what nnUNetv2_predict_from_modelfolder reads, with nnU-Net's own trainer; the checkpoints written.

    Everything of the model but folders of predictions, logs and half-finished checkpoints is there afterwards.
    """
    ModelFolder(model)
    if output.exists():
        raise BadInput(f"{output} exists: give the name of a new folder")
    checkpoints = {path: read_checkpoint(path) for path in sorted(model.glob("fold_*/checkpoint_final.pth"))}
    if not checkpoints:
        raise BadInput(f"{model} holds no finished network: no fold_0/checkpoint_final.pth or {ALL}/...")
    for path, content in checkpoints.items():
        if STATE not in content:
            raise BadInput(
                f"{path} was trained by {content['trainer_name']}, which is none of ours: nothing to rewrite"
            )
    with write_errors(output), temporary_folder(output) as whole:
        for path, content in checkpoints.items():
            target = whole / path.relative_to(model)
            target.parent.mkdir(parents=True)
            plain = {name: value for name, value in content.items() if name != STATE}
            write_checkpoint({**plain, "trainer_name": PREFIX}, target)
        for path in sorted(model.glob("*.json")):
            shutil.copyfile(path, whole / path.name)
        whole.rename(output)
    return [output / path.relative_to(model) for path in checkpoints]
