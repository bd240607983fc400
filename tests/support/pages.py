"""The code blocks of a page, as a reader would copy them."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
BLOCK = re.compile(
    r"(?:<!-- not run: (?P<reason>[^>]+) -->\n)?```(?P<language>python|bash|console)\n(?P<code>.*?)```", re.S
)


def blocks(page: Path) -> list[re.Match[str]]:
    return list(BLOCK.finditer(page.read_text(encoding="utf-8")))
