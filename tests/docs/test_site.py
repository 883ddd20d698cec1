"""The site is built strictly, and its pages are loaded in a real browser at the widths of a desktop and of a phone.

A server adds a script to each page that records errors, and serves a page that loads all others in a frame, one after
another, and sends back what each contains.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import cache, partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag

import pytest

from tests.conftest import needs

ROOT = Path(__file__).parents[2]
CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)
# In CI nothing is optional: .ci/run installs it, and without it these tests fail.
browser = pytest.mark.skipif(CHROMIUM is None and not os.environ.get("DRAIN_CI"), reason="Chromium is not installed")
QUIET = (
    "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-sync",
    "--disable-background-networking", "--disable-component-update", "--disable-dev-shm-usage", "--hide-scrollbars",
)  # fmt: skip
WIDTHS = (1280, 390)
"""Of a desktop and of a phone."""
CATCH = b"""<head><script>
window.problems = [];
addEventListener("error", (event) => {
  problems.push(event.message || "missing: " + (event.target.src || event.target.href));
}, true);
addEventListener("unhandledrejection", (event) => problems.push(String(event.reason)));
console.error = (...words) => problems.push(words.join(" "));
</script>"""
PROBE = """<body><script>
const pages = %s, widths = %s;
const pause = (milliseconds) => new Promise((done) => setTimeout(done, milliseconds));
const load = async (page) => {
  const frame = document.createElement("iframe");
  frame.style = `width: ${widths[0]}px; height: 900px; border: 0`;
  frame.src = page;
  const loaded = new Promise((done) => { frame.onload = done; });
  document.body.append(frame);
  await loaded;
  const view = frame.contentWindow, root = frame.contentDocument, scroll = [];
  for (const width of widths) {
    frame.style.width = `${width}px`;
    await pause(10);
    scroll.push(root.documentElement.scrollWidth);
  }
  const found = {page, scroll, problems: view.problems, title: root.querySelector("h1")?.textContent || ""};
  found.pictures = [...root.images].filter((image) => !image.naturalWidth).map((image) => image.src);
  found.links = [...root.links].map((link) => link.href);
  found.loaded = view.performance.getEntriesByType("resource").map((entry) => entry.name);
  frame.remove();
  return found;
};
(async () => {
  const all = [];
  for (const page of pages) all.push(await load(page));
  await fetch("/found", {method: "POST", body: JSON.stringify(all)});
})();
</script></body>"""


class Server(ThreadingHTTPServer):
    """Serves the site and the page that loads all others; `found` holds what that page sent."""

    daemon_threads = True

    def __init__(self, site: Path, pages: list[str]) -> None:
        super().__init__(("127.0.0.1", 0), partial(Handler, directory=str(site)))
        self.pages, self.arrived = pages, threading.Event()
        self.found: list[dict[str, Any]] = []

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/"


class Handler(SimpleHTTPRequestHandler):
    """Adds the script that records errors to each page."""

    server: Server

    def do_GET(self) -> None:
        path = Path(self.translate_path(self.path))
        if self.path == "/probe":
            self._answer((PROBE % (json.dumps(self.server.pages), json.dumps(WIDTHS))).encode())
        elif path.suffix == ".html" and path.is_file():
            self._answer(path.read_bytes().replace(b"<head>", CATCH, 1))
        else:
            super().do_GET()

    def do_POST(self) -> None:
        self.server.found = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self._answer(b"")
        self.server.arrived.set()

    def _answer(self, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/html; charset=utf-8")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Print nothing."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` does; a broken link is a warning, and warnings are errors."""
    needs("mkdocs")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    built = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, env={**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    )
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


@pytest.fixture(scope="module")
def found(site: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[dict[str, Any]]]:
    """What the browser found on each page; of listings of sources and of decisions one each is loaded."""
    assert CHROMIUM is not None, "Chromium is not installed; apt-get install chromium"
    pages = sorted(path.relative_to(site).as_posix() for path in site.rglob("*.html"))
    sources = [page for page in pages if page.startswith("source/")]
    left_out = {*sources[1:], *[page for page in pages if page.startswith("adr/")][1:], "404.html"}
    server = Server(site, [page for page in pages if page not in left_out])
    threading.Thread(target=server.serve_forever, daemon=True).start()
    profile = tmp_path_factory.mktemp("profile")
    # No address but this one is resolved, so a page that needs the network shows an error.
    rules = "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1"
    command = [CHROMIUM, *QUIET, f"--user-data-dir={profile}", rules, "--remote-debugging-port=0"]
    process = subprocess.Popen([*command, f"{server.address}probe"], stderr=subprocess.DEVNULL)
    try:
        assert server.arrived.wait(300), "the browser did not load all pages"
    finally:
        process.terminate()
        process.wait(30)
        server.shutdown()
        server.server_close()
    for page in server.found:
        page["links"] = [link.removeprefix(server.address) for link in page["links"]]
        page["loaded"] = [name.removeprefix(server.address) for name in page["loaded"]]
    yield server.found
    shutil.rmtree(profile, ignore_errors=True)


def test_the_site_has_a_page_for_each_file(site: Path) -> None:
    for page in (ROOT / "docs").rglob("*.md"):
        assert (site / page.relative_to(ROOT / "docs")).with_suffix(".html").is_file(), page


@browser
def test_pages_have_no_error_and_no_missing_picture(found: list[dict[str, Any]]) -> None:
    assert len(found) > 45
    for page in found:
        assert page["title"], page["page"]
        assert (page["problems"], page["pictures"]) == ([], []), page["page"]


@browser
def test_pages_load_nothing_from_the_network(found: list[dict[str, Any]]) -> None:
    for page in found:
        assert not [name for name in page["loaded"] if "://" in name], page["page"]


@browser
def test_no_page_is_wider_than_its_window(found: list[dict[str, Any]]) -> None:
    for page in found:
        for scroll, width in zip(page["scroll"], WIDTHS, strict=True):
            assert scroll <= width, (page["page"], width, scroll)


@browser
def test_no_link_is_broken(site: Path, found: list[dict[str, Any]]) -> None:
    for page in found:
        for link in page["links"]:
            target, anchor = urldefrag(link)
            if "://" in target:
                continue
            target = site / (unquote(target) or "index.html")
            assert target.exists(), (page["page"], link)
            assert not anchor or unquote(anchor) in anchors_of(target), (page["page"], link)


@cache
def anchors_of(page: Path) -> set[str]:
    """Fragments to which links to a page may lead."""
    return set(re.findall(r'\b(?:id|name)="([^"]+)"', page.read_text(encoding="utf-8")))
