"""MkDocs' side of publishing, and all of it: the generators are plain Python that another engine could call as well."""

import functools
import gc
import logging
import os
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
import pygments
import pymdownx.highlight
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.plugins import CombinedEvent, event_priority
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page as MkDocsPage
from mkdocs.utils import get_relative_url

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))  # `mkdocs build` has no reason to know our root

from docs.publish import generated as results
from docs.publish import kept, palette
from docs.publish.compiled import explorer
from docs.publish.errors import PublishError, unknown
from docs.publish.generated import census, exports, verification
from docs.publish.kept import Kept, in_a_build
from docs.publish.macros.catalogue import Macros
from docs.publish.macros.charts import svg
from docs.publish.macros.page import Page
from docs.publish.macros.render import render
from docs.publish.markdown import elsewhere, markers, pages, scripts
from docs.publish.place import SITE, Place, cuda_files, kernel_files
from docs.publish.records import sweeps
from docs.publish.records.captures import Captures
from docs.publish.records.schema import TestReport
from docs.publish.records.store import Store
from docs.publish.site import glossary, llms, notebooks, search
from tests.benchmarks import captures
from tests.benchmarks.source import ROOT


@dataclass
class Build:
    """What one build knows; everything is found from the folder of mkdocs.yml."""

    root: Path
    store: Store
    captures: Captures
    reports: list[TestReport]
    pages: dict[str, Page] = field(default_factory=dict)
    questions: dict[str, list[str]] = field(default_factory=dict)
    about: dict[str, str] = field(default_factory=dict)
    terms: list[glossary.Term] = field(default_factory=list)
    texts: dict[str, str] = field(default_factory=dict)
    whole: str = ""  # the page that the search's plugin is looking at


current: Build
MARKED = ("snippets", "kernels", "tests/benchmarks")  # pages may embed sections of the files in these folders
kept_scripts, kept_colours = Kept("scripts"), Kept("colours")


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Load the records; put the machines' pages into the navigation."""
    global current
    gc.set_threshold(50_000, 20, 50)  # a build makes many objects, and few in cycles: a quarter of its time
    kept.forget()
    root = Path(config.config_file_path).parent
    measurements = root / "docs" / "measurements"
    try:
        current = Build(
            root,
            Store.load(measurements, root, local=not releasing() and os.environ.get("RIDGEPOINT_LOCAL") != "0"),
            Captures.load(measurements / "captures", root),
            verification.load(measurements / "tests", root),
        )
        for row in current.store.select():
            palette.check(row.case, [row.variant])
    except PublishError as error:
        raise PluginError(str(error)) from error
    if wrong := markers.problems(root, MARKED):
        raise PluginError("\n".join(wrong))
    if alone():
        config.nav, config.validation.links.not_found = None, logging.DEBUG
    for pages_of in _sections(config.nav or [], "Results"):
        pages_of += results.navigation(current.store)
    return config


def _sections(nav: list[Any], title: str) -> Iterator[list[Any]]:
    """The sections of that title, however deep they are."""
    for name, inside in [pair for each in nav if isinstance(each, dict) for pair in each.items()]:
        if isinstance(inside, list):
            yield from [inside] if name == title else _sections(inside, title)


def alone() -> str:
    """The page that is built alone; empty where all are."""
    page = os.environ.get("RIDGEPOINT_PAGE", "")
    return page and f"{page.removesuffix('.md')}.md"


@event_priority(50)  # before mkdocs-jupyter, which looks for notebooks among the files
def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add what is generated, and notebooks."""
    by_hand = [file for file in files.documentation_pages() if file.src_uri.endswith(".md") and not file.generated_by]
    current.texts = {file.src_uri: file.content_string for file in by_hand}
    if written := files.get_file_from_path(glossary.PAGE):
        current.terms = glossary.terms(written.content_string)
    for path, content in (("stylesheets/palette.css", palette.css()), ("assets/vega.js", svg.bundle())):
        files.append(File.generated(config, path, content=content))
    if alone():
        return without_others(files)
    for path, content in generated(config):
        files.append(File.generated(config, path, content=content))
    files.append(File.generated(config, "results/records.zip", content=exports.archive(current.root)))
    for _, notebook in notebooks.for_the_site(current.root):
        folder = current.root / notebooks.CACHE
        path = notebook.relative_to(folder).as_posix()
        files.append(File(path, str(folder), config.site_dir, config.use_directory_urls))
    folder = current.root / notebooks.EXPERIMENTS
    for file in sorted(path for path in folder.rglob("*") if path.is_file()):
        path = f"notebooks/experiments/{file.relative_to(folder).as_posix()}"
        files.append(File.generated(config, path, content=file.read_text(encoding="utf-8")))
    return files


def without_others(files: Files) -> Files:
    """The files without all pages but one, to look at this while writing it."""
    if alone() not in current.texts:
        raise PluginError(str(unknown("page", alone(), current.texts)))
    for other in [file for file in files.documentation_pages() if file.src_uri != alone()]:
        files.remove(other)
    return files


def generated(config: MkDocsConfig) -> Iterator[tuple[str, str]]:
    """The rest that nobody writes: result pages, compiled code, files to copy."""
    in_cuda = (path for both in cuda_files(current.root).values() for path in both)
    for path in (*kernel_files(current.root).values(), *in_cuda):
        yield f"kernels/{path.name}", path.read_text(encoding="utf-8")
    embedded = {path for page, text in current.texts.items() for path in scripts.embedded(text, page)}
    for source in sorted(embedded):
        text, notebook = as_scripts(source, config.site_url or SITE)
        if source.startswith("snippets/"):
            yield scripts.served(source), text
        yield scripts.as_notebook(source), notebook
    for percent in notebooks.sources(current.root):
        yield f"notebooks/scripts/{percent.name}", percent.read_text(encoding="utf-8")
    at = functools.partial(place, config)
    yield from results.files(current.store, current.reports, census.count(), at)
    yield from explorer.files(current.store, current.captures, at)


def as_scripts(source: str, site: str) -> tuple[str, str]:
    """A file as a script and as a notebook, made again where a file has changed that is in it."""

    def hash_of(path: str) -> str:
        return kept.key((current.root / path).read_text(encoding="utf-8"))

    def made() -> dict[str, Any]:
        text = scripts.script(source, current.root, site)
        files = {path: hash_of(path) for path in scripts.reached(source, current.root)}
        return {"files": files, "script": text, "notebook": scripts.notebook(source, text)}

    def holds(known: dict[str, Any]) -> bool:
        return all((current.root / path).is_file() and hash_of(path) == then for path, then in known["files"].items())

    found = kept_scripts.get(kept.key(source, site, _tools(current.root)), made, holds)
    return found["script"], found["notebook"]


@in_a_build
def _tools(root: Path) -> str:
    """What makes scripts of files, and the files that there are."""
    files = sorted(
        path.relative_to(root).as_posix() for folder in scripts.OURS for path in (root / folder).rglob("*.py")
    )
    made_by = [(ROOT / "docs/publish/markdown" / name).read_text() for name in ("scripts.py", "markers.py")]
    return kept.key(files, made_by, sys.version)


def coloured(code: str, lexer: Any, formatter: Any) -> str:
    """As pygments.highlight, which takes a seventh of a build."""
    how = [(type(each).__name__, sorted(each.options.items())) for each in (lexer, formatter)]
    return kept_colours.get(
        kept.key(code, repr(how), pygments.__version__), lambda: pygments.highlight(code, lexer, formatter)
    )


pymdownx.highlight.highlight = coloured


def place(config: MkDocsConfig, path: str, url: str) -> Place:
    """A page's place on this site."""
    given = {"site_url": config.site_url, "repository": (config.repo_url or "").rstrip("/")}
    return Place(path, url, **{name: value for name, value in given.items() if value})


def on_page_markdown(markdown: str, *, page: MkDocsPage, config: MkDocsConfig, files: Files) -> str:
    """Render the macros of a page of ours; generated pages and notebooks have none."""
    if page.file.generated_by:
        return markdown
    if page.file.src_uri.endswith(".ipynb"):
        script = current.root / notebooks.FOLDER / f"{Path(page.file.src_uri).stem}.py"
        page.meta.update(notebooks.front_matter(script), search={"exclude": True})
        page.meta["notebook"] = f"../scripts/{script.name}", f"{script.stem}.ipynb"
        return markdown
    case = page.meta.get("case", page.file.src_uri.removesuffix(".md"))
    ours = Page(place(config, page.file.src_uri, page.url), case, said=page.meta)
    current.pages[page.file.src_uri] = ours
    macros = Macros(current.store, current.captures, ours, current.root)
    front_matter = page.file.content_string.removesuffix("\n").rpartition(markdown.rstrip("\n"))[0]
    try:
        pages.check(page.meta)
        rendered = render(markdown, macros, ours, line=front_matter.count("\n") + 1)
    except PublishError as error:
        raise PluginError(str(error)) from error
    page.meta.setdefault("reading_time", pages.minutes(markdown))
    page.meta["scripts"] = [
        ours.place.to(scripts.served(path))
        for path in scripts.offered(scripts.embedded(markdown, page.file.src_uri), current.root)
    ]
    return elsewhere.noted(rendered, ours.place, current.texts, current.root)


def on_page_content(html: str, *, page: MkDocsPage, config: MkDocsConfig, files: Files) -> str:
    """Keep figures out of the search's index."""
    return search.without_figures(html)


@event_priority(50)  # before the search's plugin
def simplified(context: dict[str, Any], *, page: MkDocsPage, config: MkDocsConfig, nav: Any) -> dict[str, Any]:
    """Give the search's plugin a page that is quick to parse."""
    current.whole = page.content or ""
    page.content = search.plain(current.whole)
    return context


@event_priority(-50)  # after the search's plugin, which so sees neither charts nor tables: to parse them takes long
def finished(context: dict[str, Any], *, page: MkDocsPage, config: MkDocsConfig, nav: Any) -> dict[str, Any]:
    """Put charts and tables in their places, and the evidence and what terms mean at the page's end."""
    page.content = search.FOR_THE_PLUGIN.sub("", current.whole)
    current.about[page.url] = f"{page.url} {page.title}. {page.meta.get('description', '')}"
    if page.file.src_uri.startswith(search.QUESTIONS):
        for answer, asked in search.questions(page.content or "", page.url).items():
            current.questions.setdefault(answer, []).extend(asked)
    if ours := current.pages.get(page.file.src_uri):
        page.content = ours.finish(page.content or "", captures.pinned(current.root))
    kept.write(Path(page.file.abs_dest_path).with_suffix(".md"), llms.markdown(page.content, page.title, {**page.meta}))
    if not page.file.src_uri.startswith((glossary.PAGE, *glossary.EXCLUDED)):
        address = get_relative_url("reference/glossary/", page.url)
        page.content = glossary.shown(page.content or "", current.terms, address)
    return context


on_page_context = CombinedEvent(simplified, finished)


def on_env(env: Any, *, config: MkDocsConfig, files: Files) -> None:
    """Refuse statements that the records contradict, and to release what is stale, before anything is written."""
    kept.FOLDER.mkdir(parents=True, exist_ok=True)
    env.bytecode_cache = jinja2.FileSystemBytecodeCache(str(kept.FOLDER))
    card = env.get_template("partials/card.html")
    for page in [file.page for file in files.documentation_pages() if file.page and file.inclusion.is_in_nav()]:
        files.append(File.generated(config, f"{page.url}card.png", content=llms.picture(card.render(page=page))))
    if broken := [line for page in current.pages.values() for line in page.broken]:
        raise PluginError("the records contradict these statements; correct the sentences:\n" + "\n".join(broken))
    if not releasing():
        return
    shown = [f"{path}: {what}" for path, page in current.pages.items() for what in page.evidence.stale]
    rows = {(row.machine, row.case) for row in current.store.select() if row.stale or row.busy}
    shown += [f"results/machines/{machine}.md: {case}" for machine, case in sorted(rows)]
    shown += sweeps.stale(current.root)
    if shown:
        raise PluginError(
            "a release shows nothing that is stale or of a busy machine; measure or capture these again:\n"
            + "\n".join(shown)
        )


@event_priority(50)  # before the search's plugin, which writes its index
def on_post_build(config: MkDocsConfig) -> None:
    """Make the search's index one of prose, with code, page titles and questions beside it."""
    if current.root == ROOT and not alone():  # others ask for little: the rest would be dropped
        kept.save()
    plugin: Any = config.plugins.get("material/search")
    if plugin:
        plugin.search_index.entries = search.entries(plugin.search_index.entries, current.questions, current.about)


def releasing() -> bool:
    """Whether this build is to be released: committed numbers only, none of them stale."""
    return os.environ.get("RIDGEPOINT_RELEASE") == "1"
