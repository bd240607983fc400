"""What cases, patients and other named things may be called: one rule, because file names are made of ids.

>>> check_id("patient_007 (ED)"), check_patient("12/345")
('patient_007 (ED)', '12/345')
>>> check_id("../../X")
Traceback (most recent call last):
calibseg.core.types.BadInput: '../../X' cannot be a case id: use letters, digits, blanks inside and . _ - + = , ( ) ...
"""

import unicodedata
from collections.abc import Collection
from typing import Any

from calibseg.core.types import BadInput

SIGNS = frozenset("._-+=,()[]{}@#&~!%^$;' ")  # beside letters and digits; none of them leads to another folder
LONGEST = 200  # bytes: a file system allows 255, and temporary names and endings are longer


def check_id(id: Any, what: str = "case id", where: Any = "") -> str:
    """The same id, if a file in the folder that it is meant for can be called so, and in no other folder.

    where: the file that says so
    """
    good = isinstance(id, str) and all(sign in SIGNS or sign.isalnum() or unicodedata.combining(sign) for sign in id)
    good = good and (id[:1].isalnum() or id[:1] == "_") and id[-1] not in " ." and ".." not in id
    if not good or len(id.encode()) > LONGEST:
        raise BadInput(
            f"{_begin(where)}{id!r} cannot be a {what}: use letters, digits, blanks inside and . _ - + = , ( )"
            f" and the like, beginning with a letter or digit, at most {LONGEST} bytes"
        )
    return id


def check_patient(patient: Any, case: str = "", where: Any = "") -> str:
    """The same name; it is no file's, but the patients `A` and `A ` would be two."""
    if not isinstance(patient, str) or not patient.isprintable() or patient != patient.strip() or not patient:
        of = f" of case {case!r}" if case else ""
        raise BadInput(
            f"{_begin(where)}the patient{of} cannot be called {patient!r}: give a name without blanks around it"
        )
    return patient


def _begin(where: Any) -> str:
    return f"{where}: " if str(where) else ""


def first_alike(ids: Collection[str]) -> str | None:
    """An id that some file systems cannot tell from an earlier one: A from a, a composed é from e with an accent."""
    seen: set[str] = set()
    for id in ids:
        key = unicodedata.normalize("NFC", unicodedata.normalize("NFC", id).casefold())
        if key in seen:
            return id
        seen.add(key)
    return None
