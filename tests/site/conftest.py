"""The built site, served as a host would serve it, in a real Chromium."""

import gzip
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
from playwright.sync_api import Browser, Error, sync_playwright

ROOT = Path(__file__).parents[2]
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
QUIET = ("--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-background-networking")
NO_BROWSER = "no Chromium: install one (apt-get install chromium), or fetch Playwright's: playwright install chromium"
PACKED = {"text/html", "text/css", "text/javascript", "application/javascript", "application/json", "image/svg+xml"}


@dataclass
class Site:
    """The built site: its folder, the address it is served at, and pages that tests add."""

    folder: Path
    address: str = ""
    added: dict[str, str] = field(default_factory=dict)

    @cached_property
    def pages(self) -> dict[str, str]:
        """The HTML of every page by its address below the site's: {"": …, "kernels/rms-norm/": …, "404.html": …}."""
        files = sorted(self.folder.rglob("*.html"))
        return {path.relative_to(self.folder).as_posix().removesuffix("index.html"): path.read_text() for path in files}

    @cached_property
    def prefix(self) -> str:
        """The path that the site is meant to be served below: "/ridgepoint/"."""
        canonical = re.search(r'<link rel="canonical" href="([^"]+)"', self.pages[""])
        return urlsplit(canonical[1]).path if canonical else "/"

    def having(self, *texts: str) -> str:
        """The address of the first page whose HTML holds all of these."""
        found = [url for url, html in self.pages.items() if all(text in html for text in texts)]
        assert found, f"expected a page with {' and '.join(texts)}, got none"
        return found[0]

    def content(self, path: str) -> bytes | None:
        """What is served at a path; None where there is nothing."""
        below = path.removeprefix(self.prefix).removeprefix("/")
        if below in self.added:
            return self.added[below].encode()
        file = self.folder / below
        file = file / "index.html" if file.is_dir() else file
        return file.read_bytes() if file.is_file() else None


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The site that SITE_DIR names, else one built now, served on localhost with gzip."""
    built = Site(Path(os.environ.get("SITE_DIR") or build(tmp_path_factory.mktemp("site"))))
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler(built))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    built.address = f"http://127.0.0.1:{server.server_port}{built.prefix}"
    yield built
    server.shutdown()


def build(target: Path) -> Path:
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(target)]
    done = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True
    )
    assert done.returncode == 0, f"the site does not build:\n{done.stdout}{done.stderr}"
    return target


def handler(site: Site) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = urlsplit(self.path).path
            content = site.content(path)
            body = content if content is not None else site.content("404.html") or b""
            kind = guess_type(path if "." in path.rpartition("/")[2] else "page.html")[0] or "application/octet-stream"
            packed = kind in PACKED
            body = gzip.compress(body, 6) if packed else body
            self.send_response(200 if content is not None else 404)
            self.send_header("Content-Type", f"{kind}; charset=utf-8" if packed else kind)
            self.send_header("Content-Length", str(len(body)))
            if packed:
                self.send_header("Content-Encoding", "gzip")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Quiet."""

    return Handler


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
