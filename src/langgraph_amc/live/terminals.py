"""What a terminal can show: texts of agents as one harmless line, and no characters that it does not have."""

from __future__ import annotations

from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.constrain import Constrain
from rich.segment import Segment

_ASCII = str.maketrans("★✓✗●■‖←·×…–" + "▏▎▍▌▋▊▉█" + "▁▂▃▄▅▆▇", "*+xo#|<.x~-" + "   ====#" + "__..--=")
"""Of the same width."""


def one_line(text: str) -> str:
    """Text that an agent or an error has said, without line breaks and without what steers a terminal."""
    return " ".join("".join(c if c.isprintable() else " " for c in text).split())


def speaks_unicode(console: Console) -> bool:
    """Whether the console's encoding has the characters that are drawn with."""
    return console.encoding.lower().startswith("utf")


def to_ascii(text: str) -> str:
    """The same with ASCII characters, each as wide."""
    return text.translate(_ASCII).encode("ascii", "replace").decode()


def fitting(shown: RenderableType, console: Console) -> RenderableType:
    """The picture in characters that the console has, with room at its end for the ``^C`` that a terminal writes.

    Without that room the cursor would go to a new line, and the last picture would be drawn one below the one before.
    """
    shown = Constrain(shown, max(1, console.width - len("^C")))
    return shown if speaks_unicode(console) else _Ascii(shown)


@dataclass(frozen=True, slots=True)
class _Ascii:
    inner: RenderableType

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        for segment in console.render(self.inner, options):
            yield segment if segment.control else Segment(to_ascii(segment.text), segment.style)
