"""The built site, served as a host would serve it, in a real Chromium.

The first test that asks for the site builds it from committed records. It is kept in .cache/site-for-tests for all
processes and later runs, until something that a build reads has changed. To test a site that is built already, name its
folder in SITE_DIR.

A test that passed is remembered while its code and all that it was served are what they were, whatever else of the site
has changed.
"""

import functools
import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from mimetypes import guess_type
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from axe_playwright_python.base import AXE_SCRIPT
from filelock import FileLock
from playwright.sync_api import Browser, Error, Page, ViewportSize, expect, sync_playwright

from tests import remembered
from tests.site.visited import Visited

ROOT = Path(__file__).parents[2]
KEPT = ROOT / ".cache" / "site-for-tests"
SETTINGS = {
    "NO_MKDOCS_2_WARNING": "1",
    "RIDGEPOINT_LOCAL": "0",
    "SOURCE_COMMIT": "main",
}  # not every commit is a change
WATCHED = """
import runpy, sys
opened = set()
_, kept, *sys.argv[1:] = sys.argv
sys.addaudithook(lambda event, given: event == "open" and isinstance(given[0], str) and opened.add(given[0]))
try:
    runpy.run_module("mkdocs", run_name="__main__", alter_sys=True)
finally:
    with open(kept, "w", encoding="utf-8") as file:
        file.writelines(f"{path}\\n" for path in sorted(opened - {kept}))
"""  # mkdocs, and then the paths that it opened, for test_build.py
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
SHORT_LIVED = "--min-semi-space-size=64 --single-threaded-gc --no-opt --no-maglev"  # a page of a test lives for seconds
QUIET = (
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking", f"--js-flags={SHORT_LIVED}",
)  # fmt: skip
NO_BROWSER = "no Chromium: install one (apt-get install chromium), or fetch Playwright's: playwright install chromium"
DESKTOP: ViewportSize = {"width": 1280, "height": 900}
PATIENCE = 120_000  # ms: the machine may be busy with other tests
PACKED = {"text/html", "text/css", "text/javascript", "application/javascript", "application/json", "image/svg+xml"}
ALL = "*"  # in place of a path
HAVING = "? "  # before the texts that pages have, in place of a path: which pages these are is what is served
ROWS = "results/rows/"
ASKED: set[str] = set()
SHARED: set[str] = set()
LASTING = {"text/css", "text/javascript", "application/javascript", "font/woff2"}  # loaded once for all pages

expect.set_options(timeout=PATIENCE)


@dataclass(eq=False)
class Site:
    """The built site: its folder, the address it is served at, files that tests add, and looks with enough contrast.

    Attributes:
        asked: the paths that a test asks for; ALL where it looks at every page, HAVING where at which pages there are.
        shared: those that the fixtures which a file's tests share asked for.
    """

    built: Path
    address: str = ""
    added: dict[str, str] = field(default_factory=lambda: {"axe.js": AXE_SCRIPT})
    looks: set[str] = field(default_factory=set)
    there: dict[str, bool] = field(default_factory=dict)
    asked: set[str] = field(default_factory=lambda: ASKED)
    shared: set[str] = field(default_factory=lambda: SHARED)

    @property
    def folder(self) -> Path:
        """Of the files; whoever asks for it may read them all."""
        self.asked.add(ALL)
        return self.built

    @property
    def pages(self) -> dict[str, str]:
        """The HTML of every page by its address below the site's: {"": …, "kernels/rms-norm/": …, "404.html": …}."""
        self.asked.add(ALL)
        return {url: html for url, html in self._files.items() if not url.startswith(ROWS)}

    @property
    def rows(self) -> dict[str, str]:
        """The HTML of every file of rows by its address; a machine's page shows them."""
        self.asked.add(ALL)
        return {url: html for url, html in self._files.items() if url.startswith(ROWS)}

    @cached_property
    def _files(self) -> dict[str, str]:
        files = sorted(self.built.rglob("*.html"))
        return {address_of(path, self.built): path.read_text(encoding="utf-8") for path in files}

    @cached_property
    def prefix(self) -> str:
        """The path that the site is meant to be served below: "/ridgepoint/"."""
        canonical = re.search(r'<link rel="canonical" href="([^"]+)"', (self.built / "index.html").read_text("utf-8"))
        return urlsplit(canonical[1]).path if canonical else "/"

    def having(self, *texts: str) -> list[str]:
        """The addresses of the pages whose HTML holds all of these."""
        question = HAVING + json.dumps(texts)
        self.asked.add(question)
        found: list[str] = json.loads(self.unasked(question) or b"")
        assert found, f"expected a page with {' and '.join(texts)}, got none"
        return found

    def html(self, url: str) -> str:
        """Of one page, or of one file of rows, by its address below the site's."""
        return (self.content(f"{self.prefix}{url}") or b"").decode()

    def has(self, path: str) -> bool:
        """Whether something is served at a path: thousands of links lead to the same few."""
        self.asked.add(path)
        if path not in self.there:
            self.there[path] = self.unasked(path) is not None
        return self.there[path]

    def content(self, path: str) -> bytes | None:
        """What is served at a path; None where there is nothing."""
        self.asked.add(path)
        return self.unasked(path)

    def unasked(self, path: str) -> bytes | None:
        """The same, for who asks on nobody's behalf; of ALL, and of LASTING, a digest; of HAVING the addresses."""
        if path in (ALL, *LASTING):
            return self._digest(path).encode()
        if path.startswith(HAVING):
            return self._having(*json.loads(path.removeprefix(HAVING))).encode()
        below = path.removeprefix(self.prefix).removeprefix("/")
        if below in self.added:
            return self.added[below].encode()
        file = self.built / below
        file = file / "index.html" if file.is_dir() else file
        return file.read_bytes() if file.is_file() else None

    @functools.cache  # noqa: B019 (there is one site)
    def _having(self, *texts: str) -> str:
        pages = {url: html for url, html in self._files.items() if not url.startswith(ROWS)}
        return json.dumps([url for url, html in pages.items() if all(text in html for text in texts)])

    @functools.cache  # noqa: B019 (there is one site)
    def _digest(self, kind: str) -> str:
        """Of all files, or of those of a kind."""
        found = hashlib.sha256()
        for file in sorted(path for path in self.built.rglob("*") if path.is_file()):
            if kind == ALL or guess_type(file.name)[0] == kind:
                found.update(f"{file.relative_to(self.built)}\0".encode() + hashlib.sha256(file.read_bytes()).digest())
        return found.hexdigest()


def rows_of(page: str) -> str:
    """The folder of the rows that a machine's page can show."""
    return page.replace("results/machines/", ROWS)


def address_of(file: Path, folder: Path) -> str:
    """A page's address below the site's."""
    return file.relative_to(folder).as_posix().removesuffix("index.html")


@pytest.fixture(scope="session")
def site() -> Iterator[Site]:
    """The site, served on localhost with gzip."""
    built = Site(the_site())
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(built))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    built.address = f"http://127.0.0.1:{server.server_port}{built.prefix}"
    yield built
    server.shutdown()


def the_site() -> Path:
    """The folder that SITE_DIR names, else that of the site that is kept: built anew where its inputs changed."""
    from docs.publish.site import inputs, notebooks  # here: what a build reads is not what each test reaches

    if given := os.environ.get("SITE_DIR"):
        return Path(given)
    KEPT.mkdir(parents=True, exist_ok=True)
    settings = os.environ | SETTINGS
    list(notebooks.for_the_site())  # the build reads these, and else writes them: then its inputs are others
    wanted, stamp = inputs.digest(ROOT, settings), KEPT / "digest"
    with FileLock(KEPT / "lock"):
        if not stamp.exists() or stamp.read_text() != wanted:
            stamp.unlink(missing_ok=True)
            command = [sys.executable, "-c", WATCHED, KEPT / "opened", "build", "--strict", "--quiet", "--site-dir"]
            done = subprocess.run([*command, KEPT / "site"], cwd=ROOT, env=settings, capture_output=True, text=True)
            if done.returncode:
                pytest.fail(f"the site does not build:\n{done.stdout}{done.stderr}", pytrace=False)
            stamp.write_text(wanted)
    return KEPT / "site"


@functools.lru_cache(256)
def compressed(body: bytes) -> bytes:
    return gzip.compress(body, 6)


def handler(site: Site) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = urlsplit(self.path).path
            content = site.content(path)
            body = content if content is not None else site.content("404.html") or b""
            kind = guess_type(path if "." in path.rpartition("/")[2] else "page.html")[0] or "application/octet-stream"
            packed = kind in PACKED
            body = compressed(body) if packed else body
            self.send_response(200 if content is not None else 404)
            self.send_header("Content-Type", f"{kind}; charset=utf-8" if packed else kind)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Cache-Control", "max-age=3600" if kind in LASTING else "no-store")
            if packed:
                self.send_header("Content-Encoding", "gzip")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    return Handler


@pytest.fixture(scope="module", autouse=True)
def asked_anew() -> None:
    """Another file's tests have fixtures of their own."""
    ASKED.clear()
    SHARED.clear()


@pytest.fixture(autouse=True)
def remembered_as_served(request: pytest.FixtureRequest) -> None:
    plugin = request.config.pluginmanager.get_plugin("remembered-tests")
    if plugin and "site" in request.fixturenames:
        browsers = [request.getfixturevalue("browser").version] if "browser" in request.fixturenames else []
        leave_out_as_served(plugin, request.getfixturevalue("site"), request.node.nodeid, request.path, browsers)


def leave_out_as_served(plugin: remembered.Remembered, site: Site, name: str, file: Path, browsers: list[str]) -> None:
    """Leave out a test that passed when it was served the same, and have the end of another kept."""
    code = remembered.digest(plugin.root, plugin.code(file))
    lasting = [(site.unasked(kind) or b"").decode() for kind in sorted(LASTING)]  # a browser asks for these once
    again = float(plugin.fresh or plugin.again(file))
    known = Visited(plugin.root / ".cache" / "site-tests", site.unasked, " ".join([code, *browsers, *lasting]), again)
    site.shared |= site.asked  # since the last test's end: fixtures of a wider scope come before those of a test
    site.asked.clear()
    if known.faultless(name):
        plugin.leave_out(name)

    def ended(faultless: bool) -> None:
        known.keep(name, site.asked | site.shared, faultless)
        site.asked.clear()

    plugin.served[name] = ended


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    """The Chromium of this machine, else Playwright's. Without either the tests fail, and say what to install."""
    found = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, CHROMIUM)), None)
    with sync_playwright() as playwright:
        try:
            launched = playwright.chromium.launch(executable_path=found, args=QUIET)
        except Error as error:
            pytest.fail(f"{NO_BROWSER}\n{error.message.splitlines()[0]}", pytrace=False)
        yield launched
        launched.close()


@pytest.fixture(scope="session")
def tab(browser: Browser) -> Iterator[Page]:
    """One tab for all tests of a process: another one costs a process of the browser and half a second."""
    context = browser.new_context()
    context.grant_permissions(["clipboard-read", "clipboard-write"])
    context.set_default_timeout(PATIENCE)
    yield context.new_page()
    context.close()


@pytest.fixture
def page(site: Site, tab: Page) -> Iterator[Page]:
    """The tab as a first visitor has it: of a desktop's size, in light mode, with nothing remembered or rerouted."""
    tab.set_viewport_size(DESKTOP)
    tab.emulate_media(color_scheme="light", reduced_motion="no-preference")
    yield tab
    tab.unroute_all()
    if tab.url.startswith(site.address):
        tab.evaluate("localStorage.clear(), sessionStorage.clear()")
    tab.goto("about:blank")
