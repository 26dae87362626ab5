"""From matplotlib to the page: pictures as small SVG, in the letters and the colours of the page, light or dark."""

import io
import re
from collections.abc import Callable
from typing import Any
from xml.etree import ElementTree

from markupsafe import Markup

WIDTH = 420

_NAMES = ("ink", "soft", "line", "mute", "accent", "page")
_COLOURS = {f"#00000{number}": f"var(--{name})" for number, name in enumerate(_NAMES, start=1)}
INK, SOFT, LINE, MUTE, ACCENT, PAGE = _COLOURS
"""Stand-ins for the colours of the page; none is black, which matplotlib leaves unsaid."""

_FONT = "DejaVu Sans"  # comes with matplotlib, which measures by it
_OF_THE_PAGE = _COLOURS | {f"'{_FONT}'": "var(--font)"}
_LOOK = {
    "svg.fonttype": "none",
    "text.parse_math": False,
    "text.color": SOFT,
    "font.family": _FONT,
    "font.size": 12,
    "axes.autolimit_mode": "round_numbers",
    "axes.xmargin": 0,
    "axes.ymargin": 0,
    "axes.grid": True,
    "grid.color": LINE,
    "grid.linewidth": 1,
    "lines.solid_capstyle": "round",
}


def picture(
    words: str, draw: Callable[[Any], None], *, height: float, left: float, right: float, top: float, bottom: float
) -> Markup:
    """What `draw` puts on axes within these margins, in pixels; `words` tell it to those who do not see it."""
    from matplotlib import style  # here, for it takes half a second, and training imports the report
    from matplotlib.figure import Figure

    inside = (left / WIDTH, bottom / height, 1 - (left + right) / WIDTH, 1 - (top + bottom) / height)
    with style.context(_LOOK | {"svg.hashsalt": words}, after_reset=True):
        figure, svg = Figure(figsize=(WIDTH / 72, height / 72)), io.StringIO()
        draw(figure.add_axes(inside, frame_on=False))
        nothing = dict.fromkeys(("Date", "Creator", "Format", "Type"))
        figure.savefig(svg, format="svg", metadata=nothing, transparent=True)
    return _inline(svg.getvalue(), words)


def _inline(svg: str, words: str) -> Markup:
    """The element of a file, without what only a file needs."""
    root = ElementTree.fromstring(re.sub(r' xmlns(:xlink)?="[^"]*"|(?<= )xlink:(?=href=)', "", svg))
    root[:] = [part for part in root if part.find("style") is None]  # a rule for every element of the page
    root.attrib = {"viewBox": root.attrib["viewBox"], "role": "img", "aria-label": words}
    idle = {("g", "id"), ("text", "transform")}
    for node in root.iter():
        node.tail, node.text = None, node.text if node.tag == "text" else None
        kept = {name: value for name, value in node.items() if (node.tag, name) not in idle}
        node.attrib = {name: _short(value) if name in {"d", "x", "y"} else value for name, value in kept.items()}
    stand_ins = re.compile("|".join(_OF_THE_PAGE))
    return Markup(stand_ins.sub(lambda found: _OF_THE_PAGE[found[0]], ElementTree.tostring(root, encoding="unicode")))


def _short(numbers: str) -> str:
    """Coordinates to a tenth of a pixel, in one line."""
    return " ".join(re.sub(r"\d+\.\d+", lambda found: f"{float(found[0]):.1f}".removesuffix(".0"), numbers).split())
