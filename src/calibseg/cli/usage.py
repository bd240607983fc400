"""How to use a loss in a bare loop, and the file that `calibseg new FAMILY NAME` writes (templates/)."""

import keyword
import re
from pathlib import Path

from calibseg.core.registry import PACKAGE, SINGULAR, Member, members
from calibseg.core.registry import folder as registry_folder
from calibseg.core.types import BadInput

TEMPLATES = Path(__file__).parent / "templates"  # one file for each family that `calibseg new` knows


def usage(member: Member) -> tuple[str, list[str]]:
    """What a loop must do for this loss, and the lines that do it. Read from the source: nothing is imported."""
    make = [f"from calibseg.losses import {member.class_name}", f"loss = {member.class_name}().setup(num_classes)"]
    if member.module.startswith("calibseg_file_"):
        make[0] = f'from calibseg.core.registry import load; {member.class_name} = load("losses", "{member.path}")'
    if member.facts.get("views") == 2:
        return "needs two views", [
            *make,
            "logits = network(torch.cat([view_a, view_b]))          # two augmented copies of the batch",
            "logits, valid = back_to_the_grid(logits)               # invert the augmentation's affine",
            "loss(logits, target, valid=valid).backward()",
        ]
    if "observe" in member.facts["methods"]:
        return "needs observe and end_epoch", [
            *make,
            "loss(network(image), target).backward()                # every training step",
            "loss.observe(network(image), target)                   # every validation batch, under torch.no_grad()",
            "log = loss.end_epoch()                                 # once per epoch, after validation",
        ]
    return "plain", [
        make[0],
        f"loss = {member.class_name}()",
        "logits = network(image)                                # [n k *space]",
        "loss(logits, target).backward()                        # target: integer [n *space] or soft [n k *space]",
        "print(loss.terms(logits, target))                      # the same in named parts",
    ]


def write_member(family: str, name: str, folder: Path) -> Path:
    """Write a working member of a family (`losses`) into `folder`; refuse bad names and existing files."""
    from calibseg.core.files import write_text  # here: explaining a member needs no numpy

    kind = SINGULAR[family]
    if not re.fullmatch(r"[a-z][a-z0-9_]{0,79}", name) or keyword.iskeyword(name):
        raise BadInput(f"{name!r} cannot be a key: use lower-case letters, digits and underscores, such as 'my_{kind}'")
    if name in members(family):
        raise BadInput(f"there is a {kind} named {name!r} already: {members(family)[name].path}")
    path = folder / f"{name}.py"
    if path.exists():
        raise BadInput(f"{path} exists already: choose another name")
    if folder.exists() and not folder.is_dir():
        raise BadInput(f"{folder} is a file: --folder wants a folder")
    text = (TEMPLATES / f"{kind}.py.txt").read_text(encoding="utf-8")
    class_name = "".join(part.capitalize() for part in name.split("_"))
    text = text.replace("CLASS_NAME", class_name).replace("ACRONYM", name.upper().replace("_", " "))

    write_text(path, text)
    return path


def default_folder(family: str, here: Path) -> tuple[Path, bool]:
    """Where a new member goes, and whether that is a checkout: then it is the family's folder, else `here`."""
    inside = registry_folder(family).relative_to(PACKAGE)
    for parent in (here, *here.parents):
        home = parent / "src" / "calibseg" / inside
        if (parent / "pyproject.toml").is_file() and home.resolve() == registry_folder(family).resolve():
            return home, True
    return here, False
