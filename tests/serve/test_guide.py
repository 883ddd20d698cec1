"""The commands of the guide print what it shows."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from drainsinkhorn.serve import Server

PAGE = Path(__file__).parents[2] / "docs/guides/serve.md"
SHOWN = re.compile(r"^```sh\n(.*?)^```\n\n```(json|text)\n(.*?)^```\n", flags=re.DOTALL | re.MULTILINE)


def equal(one: Any, other: Any) -> bool:
    """True if JSON values are equal, numbers up to rounding."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(equal, one, other))
    return one == (pytest.approx(other, rel=1e-5, abs=1e-5) if isinstance(other, float) else other)


@pytest.mark.skipif(shutil.which("curl") is None and not os.environ.get("DRAIN_CI"), reason="curl is not installed")
def test_commands_print_what_is_shown(server: Server, tmp_path: Path) -> None:
    shown = SHOWN.findall(PAGE.read_text())
    assert len(shown) == 3
    paths = {**os.environ, "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
    for command, language, expected in shown:
        script = command.replace("http://127.0.0.1:8417", server.address)
        done = subprocess.run(
            ["sh", "-ec", script], cwd=tmp_path, env=paths, capture_output=True, text=True, check=True
        )
        if language == "json":
            assert equal(json.loads(done.stdout), json.loads(expected)), done.stdout
        else:
            assert done.stdout == expected


def test_the_table_of_limits_has_every_default() -> None:
    from drainsinkhorn.serve import ServerLimits

    limits, text = ServerLimits(), PAGE.read_text()
    rows = dict(re.findall(r"^\| (`--[^|]*) \| ([^|]*) \|", text, flags=re.MULTILINE))
    shown = {
        name.strip("`- ").replace("-", "_"): value.split()[0]
        for names, values in rows.items()
        for name, value in zip(names.split(", "), values.split(", "), strict=True)
    }
    for name in ServerLimits.__dataclass_fields__:
        value = getattr(limits, name)
        size = value / 2**20 if name in ("max_body", "max_unpacked", "max_memory") else value
        assert shown.pop(name) == ("2^28" if name == "max_pairs" else f"{size:g}")
    assert not shown
