"""Functions that format numbers as text, and that convert text to HTML, Markdown or LaTeX."""

from __future__ import annotations

import math
import re
from html import escape
from typing import Any

DASH = "–"
_POWER = re.compile(r"(?<![\w.])(\d+(?:\.\d+)?)e(-?)0*(\d+)(?!\w)")
_MINUS = "−"
_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_TEX = {
    "\\": r"\textbackslash{}", "&": r"\&", "%": r"\%", "$": r"\$", "#": r"\#", "_": r"\_", "{": r"\{", "}": r"\}",
    "~": r"\textasciitilde{}", "^": r"\textasciicircum{}", "<": "$<$", ">": "$>$", "|": "$|$",
    "×": r"$\times$", "·": r"$\cdot$", "±": r"$\pm$", "≤": r"$\le$", "≥": r"$\ge$", "≈": r"$\approx$", "τ": r"$\tau$",
    "λ": r"$\lambda$", "ε": r"$\varepsilon$", "−": "$-$", "–": "--", "—": "---", "…": r"\ldots{}", "₂": "$_2$",
    "µ": r"\textmu{}", "é": r"\'e", "Σ": r"$\Sigma$", "→": r"$\to$",
}  # fmt: skip

GUARDS = {
    "door": "validation of the problem",
    "verify": "verify",
    "healed": "the iteration itself",
    "rescue": "rescue",
    "reported": "status NONFINITE",
    "requeued": "the fleet",
    "identity": "lane identity",
    "recheck": "recheck",
    "quarantine": "the executor",
    "nobody": "none of ours",
    "gate": "none of ours",
}
"""What stops an attack, by the names that records have for it; "gate" stands in records of older campaigns."""


def times(ratio: float | None) -> str:
    """A ratio: 4.11×, 12.3×, 131×; near one, where digits matter, 1.004×."""
    if ratio is None or not math.isfinite(ratio):
        return DASH
    if ratio >= 100:
        return f"{ratio:.0f}×"
    if ratio >= 10:
        return f"{ratio:.1f}×"
    return f"{ratio:.3f}×" if 0.9 <= ratio < 2 else f"{ratio:.2f}×"


def span(low: float | None, high: float | None) -> str:
    """An interval of ratios."""
    if low is None or high is None:
        return ""
    digits = 0 if low >= 100 else 1 if low >= 10 else 3 if 0.9 <= low < 2 else 2
    if high - low < 0.002:
        digits = 4
    return f"[{low:.{digits}f}, {high:.{digits}f}]"


def told(value: float) -> str:
    """A ratio of the paper, with the digits it gives."""
    return f"{value:.3f}×" if abs(value - round(value, 3)) < 1e-9 else f"{value:.4f}×"


def told_span(low: float | None, high: float | None) -> str:
    """An interval of the paper, with the digits it gives, three or four."""
    if low is None or high is None:
        return ""
    digits = min(4, max(3, *(len(f"{end:g}".partition(".")[2]) for end in (low, high))))
    return f"[{low:.{digits}f}, {high:.{digits}f}]"


def seconds(value: float | None) -> str:
    """A time with its unit."""
    if value is None or not math.isfinite(value):
        return DASH
    for unit, size in (("s", 1.0), ("ms", 1e-3), ("µs", 1e-6)):
        if value >= size or unit == "µs":
            return f"{significant(value / size)} {unit}"
    return DASH


def brief_seconds(value: float) -> str:
    """A round time with its unit, without digits that say nothing."""
    unit, size = next(
        ((unit, size) for unit, size in (("s", 1.0), ("ms", 1e-3)) if value >= size * 0.999), ("µs", 1e-6)
    )
    return f"{value / size:g} {unit}"


def significant(value: float, digits: int = 3) -> str:
    """Return a number with at least `digits` significant digits, all those before the point, without an exponent."""
    if value == 0 or not math.isfinite(value):
        return "0" if value == 0 else str(value)
    places = max(0, digits - 1 - math.floor(math.log10(abs(value))))
    return f"{value:,.{places}f}"


def small(value: float | None, digits: int = 2) -> str:
    """A residual or deviation: 9.67e-4."""
    if value is None or not math.isfinite(value):
        return DASH
    if value == 0:
        return "0"
    head, power = f"{value:.{digits}e}".split("e")
    head = head.rstrip("0").rstrip(".") if digits == 0 or set(head[2:]) == {"0"} else head
    return f"{head}e{int(power)}"


def tolerance(value: float) -> str:
    """A tolerance: 1e-3."""
    return small(value, 2 if f"{value:.1e}"[2] != "0" else 0)


def percent(share: float | None, digits: int = 0) -> str:
    """A share of one."""
    return DASH if share is None or not math.isfinite(share) else f"{100 * share:.{digits}f} %"


def count(value: int | float | None) -> str:
    """A whole number with thousands apart."""
    return DASH if value is None else f"{value:,.0f}"


def size(value: float | None) -> str:
    """Bytes."""
    if value is None:
        return DASH
    return f"{significant(value / 2**30)} GiB" if value >= 2**30 else f"{significant(value / 2**20)} MiB"


def plural(number: int, noun: str) -> str:
    """1 unit, 2 units, 2 studies."""
    many = f"{noun[:-1]}ies" if noun.endswith("y") else f"{noun}s"
    return f"{number:,} {noun if number == 1 else many}"


def plain(value: Any) -> str:
    """A value of an option or fact, for reading."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return small(value) if value and (abs(value) < 1e-2 or abs(value) >= 1e6) else f"{value:g}"
    if isinstance(value, int):
        return count(value)
    if isinstance(value, list | tuple):
        return ", ".join(plain(part) for part in value)
    if isinstance(value, dict):
        return ", ".join(f"{key} {plain(part)}" for key, part in value.items())
    return DASH if value is None else str(value)


def raised(text: str) -> str:
    """Text for a chart: powers of ten with raised digits."""

    def power(found: re.Match[str]) -> str:
        head = "" if found[1] == "1" else f"{found[1]}·"
        return f"{head}10{(found[2] + found[3]).translate(_RAISED)}"

    return _POWER.sub(power, text)


def html(text: str) -> str:
    """Text for a page: powers of ten written as such."""

    def power(found: re.Match[str]) -> str:
        head = "" if found[1] == "1" else f"{found[1]}·"
        return f"{head}10<sup>{_MINUS if found[2] else ''}{found[3]}</sup>"

    return _POWER.sub(power, escape(text, quote=False))


def latex(text: str) -> str:
    """Text for LaTeX."""
    parts = list[str]()
    at = 0
    for found in _POWER.finditer(text):
        head = "" if found[1] == "1" else rf"{found[1]}\times"
        parts += [_tex(text[at : found.start()]), f"${head} 10^{{{found[2]}{found[3]}}}$".replace("$ ", "$")]
        at = found.end()
    return "".join([*parts, _tex(text[at:])])


def _tex(text: str) -> str:
    return "".join(_TEX.get(letter, letter) for letter in text)


def markdown(text: str) -> str:
    """Text for a cell of a Markdown table."""
    return text.replace("|", "\\|").replace("\n", " ")
