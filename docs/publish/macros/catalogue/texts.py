"""What scripts print, files to copy, lists and links."""

from collections.abc import Iterable
from html import escape

from docs.publish.errors import unknown
from docs.publish.macros import captures as capture_blocks
from docs.publish.macros import doors, folklore, kernel_files, questions, suite
from docs.publish.macros.catalogue.shared import Shared


class Texts(Shared):
    """What is no number, no statement and no figure."""

    def folklore(self, anchor: str = "") -> str:
        """A belief of the page's front matter with its verdict, or those of all pages: see macros.folklore."""
        shared = self._store, self._evidence, self._root
        if anchor:
            return self._page.put_html(folklore.of_page(*shared, anchor, self._macros()))
        return self._page.put_html(folklore.of_all(*shared, self._macros()))

    def jobs(self, *wanted: doors.Job) -> str:
        """A list of jobs, each with the page that answers it: jobs(["Time an op", "validation/timing.md", "…"])."""
        return self._page.put_markdown(doors.jobs(wanted))

    def route(self, *legs: doors.Leg) -> str:
        """A path through pages, with minutes: route(["Timing", "validation/timing.md", "what to do there"], ...)."""
        return self._page.put_markdown(doors.route(self._root, self._page.place, legs))

    def questions(self, subjects: Iterable[tuple[str, str]]) -> str:
        """What people asked about subjects, each with its heading: see docs.publish.macros.questions."""
        return self._page.put_markdown(questions.tables(self._root, self._page.place, subjects))

    def clone(self, command: str) -> str:
        """The lines that install torch, clone the repository and run a command in it."""
        return self._page.put_markdown(doors.clone(self._page.place, command))

    def fetch(self, source: str) -> str:
        """The line that fetches a file that a page embeds, as a script, and runs it."""
        return self._page.put_markdown(doors.fetch(self._page.place, source))

    def suite(self) -> str:
        """What the tests take by area, see docs.publish.macros.suite."""
        return self._page.put_html(suite.table(self._root, self._page.place))

    def output(
        self,
        section: str = "",
        lines: str = "",
        columns: bool = False,
        language: str = "text",
        of: str = "",
        on: str = "",
    ) -> str:
        """What the page's own script printed, or the one of that name: output("table", of="compiler/modes", on="gpu").

        See docs.publish.macros.captures.show. Without a device it is the GPU's if that is stored, else the CPU's.
        """
        capture = self._printed(section, of, on)
        shown = capture_blocks.show(self._captures, capture, self._evidence, lines, columns, language)
        return self._page.put_markdown(shown)

    def kernel_file(self, name: str) -> str:
        """The panel that offers kernels/<name>.py to copy."""
        return self._page.put_markdown(kernel_files.panel(name, self._page.place, self._root))

    def section_lines(self, name: str, section: str) -> str:
        """How many lines a section of kernels/<name>.py has, by its mark in the file."""
        return str(kernel_files.section_lines(name, section, self._root))

    def snippet_file(self, path: str) -> str:
        """The panel that offers a file of snippets/ to copy, with all that it uses of others."""
        return self._page.put_markdown(kernel_files.snippet(path, self._page.place, self._root))

    def source(self, file: str) -> str:
        """A link to a file of the repository, as it is at the commit that is built."""
        if not (self._root / file).is_file():
            folder = (self._root / file).parent
            beside = sorted(path.relative_to(self._root).as_posix() for path in folder.glob("*") if path.is_file())
            raise unknown("source", file, beside)
        return f'<a href="{escape(self._page.place.source(file))}"><code>{escape(file)}</code></a>'

    def explorer(self, name: str) -> str:
        """What kernels/<name>.py, or the compiler's page, was compiled to: facts, and the button of the viewer."""
        from docs.publish.compiled.panel import panel  # brings Triton

        return self._page.put_html(panel(self._store, self._captures, self._evidence, name))

    def compiled(self, name: str, at: str, function: str, **what: str) -> str:
        """A fact of a compiled kernel, or words, with a link into the viewer: see compiled/references.py.

        compiled("softmax", "forward-32768x4096", "_forward_row_kernel", fact="registers")
        compiled("softmax", "forward-32768x4096", "_forward_row_kernel", line="row = (tl.program_id", text="the row")
        """
        from docs.publish.compiled.references import reference

        return reference(self._captures, name, at, function, **what)
