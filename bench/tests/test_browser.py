"""The page in a real browser: Chromium without a window, which runs the page's script and lays it out.

A probe is appended to a copy of the page; what it finds it writes into the document, which Chromium prints.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from html import escape, unescape
from pathlib import Path
from typing import Any

import fixture
import pytest

from drainsinkhorn_bench import report
from drainsinkhorn_bench.records import read_all

FOUND = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None)
# In CI nothing is optional: .ci/run installs it, and without it these tests fail.
pytestmark = pytest.mark.skipif(FOUND is None and not os.environ.get("DRAIN_CI"), reason="Chromium is not installed")
QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage", "--hide-scrollbars",
)  # fmt: skip
NARROW = 390
CATCH = "<script>window.errors = []; addEventListener('error', (e) => errors.push(e.message));</script>"
PROBE = """<script>
const result = {errors, width: innerWidth, scroll: document.documentElement.scrollWidth};
result.overflowing = [...document.querySelectorAll("main *")].filter((part) => {
  if (part.closest(".scroll, svg, [hidden], details:not([open])")) return false;
  return part.getBoundingClientRect().right > innerWidth + 1;
}).slice(0, 5).map((part) => part.tagName + "." + part.className);
result.ground = getComputedStyle(document.body).backgroundColor;
result.paths = document.querySelectorAll("svg.plot").length;
result.empty = [...document.querySelectorAll("svg.plot")].filter((plot) => {
  if (plot.closest("[hidden]")) return false;
  const box = plot.getBoundingClientRect();
  return box.width < 50 || box.height < 20;
}).length;

const figure = document.getElementById("packer19-pareto");
const key = figure.querySelector('.key[data-series="mask"]');
const masks = [...figure.querySelectorAll('[data-s="mask"]')];
const parts = () => masks.filter((part) => !part.hasAttribute("hidden")).length;
result.before = parts();
key.click();
result.after = parts();
result.pressed = key.getAttribute("aria-pressed");
key.click();
result.again = parts();

const widths = document.getElementById("metropt3-widths");
const select = widths.querySelector("select");
const panels = [...widths.querySelectorAll("[data-panel]")];
const shown = () => panels.filter((part) => !part.hidden).map((part) => part.dataset.panel);
result.first = shown();
select.value = "2";
select.dispatchEvent(new Event("change"));
result.chosen = shown();

const mark = figure.querySelector('[data-s="compact"] .mark');
const box = mark.getBoundingClientRect();
mark.dispatchEvent(new PointerEvent("pointermove", {bubbles: true, clientX: box.x + 2, clientY: box.y + 2}));
result.tip = document.querySelector(".tip.on")?.textContent || "";

document.querySelector("button.theme").click();
result.other = getComputedStyle(document.body).backgroundColor;
const told = document.createElement("pre");
told.id = "probe";
told.textContent = JSON.stringify(result);
parent.document.body.append(told);
</script>"""


@pytest.fixture(scope="module")
def page(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = fixture.write(tmp_path_factory.mktemp("raw"))
    path, *_ = report.write(read_all(folder), folder / "report")
    text = path.read_text(encoding="utf-8").replace("<head>", "<head>" + CATCH).replace("</body>", PROBE + "</body>")
    path.with_name("probed.html").write_text(text, encoding="utf-8")
    # A window has a least width; a frame in it has none.
    frame = f'<body><iframe style="width: {NARROW}px; height: 900px" srcdoc="{escape(text)}"></iframe></body>'
    path.with_name("narrow.html").write_text(frame, encoding="utf-8")
    return path


def chromium(folder: Path, *words: str) -> str:
    assert FOUND is not None, "Chromium is not installed; apt-get install chromium"
    command = [FOUND, *QUIET, f"--user-data-dir={folder / 'profile'}", *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=120).stdout


def probed(page: Path, folder: Path, *words: str) -> dict[str, Any]:
    dom = chromium(folder, "--dump-dom", *words, page.as_uri())
    found = re.search(r'<pre id="probe">(.*?)</pre>', dom, re.DOTALL)
    assert found, "the probe did not end"
    return json.loads(unescape(found[1]))


@pytest.fixture(scope="module")
def wide(page: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return probed(page.with_name("probed.html"), tmp_path_factory.mktemp("wide"), "--window-size=1440,1000")


def test_the_script_runs_without_an_error(wide: dict[str, Any]) -> None:
    assert wide["errors"] == []


def test_the_legend_hides_and_shows_an_arm(wide: dict[str, Any]) -> None:
    assert wide["before"] > 1
    assert (wide["after"], wide["pressed"]) == (0, "false")
    assert wide["again"] == wide["before"]


def test_another_unit_can_be_chosen(wide: dict[str, Any]) -> None:
    assert (wide["first"], wide["chosen"]) == (["0"], ["2"])


def test_a_mark_tells_its_numbers(wide: dict[str, Any]) -> None:
    assert wide["tip"].startswith("compact, tol 1e-")


def test_the_page_can_be_turned_dark(wide: dict[str, Any]) -> None:
    lightness = [sum(map(int, re.findall(r"\d+", wide[key])[:3])) for key in ("ground", "other")]
    assert lightness[0] > 700
    assert lightness[1] < 120


def test_every_chart_has_a_size(wide: dict[str, Any]) -> None:
    assert wide["paths"] > 30
    assert wide["empty"] == 0


@pytest.mark.parametrize(("name", "window"), [("probed", 1440), ("probed", 900), ("narrow", 900)])
def test_nothing_sticks_out(page: Path, tmp_path: Path, name: str, window: int) -> None:
    found = probed(page.with_name(f"{name}.html"), tmp_path, f"--window-size={window},900")
    assert found["width"] == (NARROW if name == "narrow" else window)
    assert found["overflowing"] == []
    assert found["scroll"] <= found["width"]


def test_it_prints(page: Path, tmp_path: Path) -> None:
    pdf = tmp_path / "page.pdf"
    chromium(tmp_path, "--no-pdf-header-footer", f"--print-to-pdf={pdf}", page.as_uri())
    pages = len(re.findall(rb"/Type\s*/Page\b", pdf.read_bytes()))
    # What is folded stays off the paper: the raw set took 24 pages, and 63 with everything open.
    assert 10 <= pages <= 35
