"""What every command prints with: one console, and lines that the terminal breaks, so that a path stays whole."""

from rich.console import Console

out = Console(highlight=False)


def print_line(text: str, style: str = "") -> None:
    """A line with rich's markup; what comes from files and users is escaped by the caller."""
    out.print(text, style=style or None, soft_wrap=True)
