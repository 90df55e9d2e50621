"""What a measurement reaches: the functions, classes and constants of ours that its code can use, from texts alone.

From a root, names are followed through the syntax trees of kernels/, snippets/ and tests/benchmarks/. Nothing runs, so
the site's build and an older commit give the same answer as the machine that measured. Whatever might be used counts.

What is written is canonical, so that only what a program does counts: comments, docstrings, layout, annotations that
nothing reads, the messages of errors and warnings, and the names of functions, constants, modules and local variables
do not. A name of ours stands there as the number of what it means. Names that callers write out (parameters,
attributes, members of classes) do count. Of a class, only members whose name the reached code mentions count, and all
of them where the class has a base, or a decorator other than dataclass, which may call any.
"""

import ast
import hashlib
import io
import re
import subprocess
import tarfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path, PurePosixPath
from typing import NamedTuple

from tests.benchmarks.imports import of_statement
from tests.benchmarks.source import ROOT, tokens

FOLDERS = ("kernels", "snippets", "tests/benchmarks")
PLUMBING = "tests.benchmarks.machine"  # describes machines and takes turns at them; by its name, like what others wrote
CALLS_FOR_READERS = ("warnings.warn", "report")  # what these and errors are given is text for people
READ_NO_ANNOTATIONS = ("functools.", "contextlib.", "dataclasses.", "property", "staticmethod", "classmethod")
FUNCTIONS = ast.FunctionDef | ast.AsyncFunctionDef
COMPREHENSIONS = ast.ListComp | ast.SetComp | ast.DictComp | ast.GeneratorExp
COMPOUND = ast.If | ast.For | ast.While | ast.With | ast.Try


class Reached(NamedTuple):
    """What a root reaches.

    Attributes:
        hash: of all of it and how it hangs together.
        functions: by file and name, a hash of its own syntax tree: they tell what changed.
    """

    hash: str
    functions: dict[str, str]


class Use(NamedTuple):
    """A name of ours where code uses it: by a path with dots, or by one of a file's own top level."""

    path: str
    file: str = ""


class Names(NamedTuple):
    """A text that names a file or a module of ours, which the code may read or start."""

    text: str
    file: str


Part = str | Use | Names


@dataclass(frozen=True)
class Written:
    """A piece of code in canonical form.

    Attributes:
        parts: its text, with the uses of ours where they stand.
        mentioned: the attributes and keywords in it, by which it may reach members of a class or a module.
    """

    parts: tuple[Part, ...]
    mentioned: frozenset[str]


class Item(NamedTuple):
    """A statement at the top level of a file, or (`member`) one of a class there; a whole file for the index -1."""

    file: str
    at: int
    member: int = -1


# ---- one file -------------------------------------------------------------------------------------------------------


class Module:
    """A file's statements at its top level."""

    def __init__(self, file: str, text: str):
        self.file = file
        self.body = ast.parse(text, file).body
        self.package = file.rpartition("/")[0].replace("/", ".")
        self.imports = self.imported(self.body)
        self.reads_annotations = "torch.jit" in text or "custom_op" in text
        self.bound: dict[str, list[tuple[int, int]]] = {}  # by name: the statements, and the place among their names
        for index, node in enumerate(self.body):
            for place, name in enumerate(_binds(node)):
                self.bound.setdefault(name, []).append((index, place))

    def imported(self, body: Iterable[ast.AST]) -> dict[str, str]:
        """The paths with dots of what some statements import, by the names that they bind: `import a.b` binds "a"."""
        found = [each for node in _flat(body) for each in of_statement(node, self.package)]
        plain = {each.bound for each in found if not each.name and each.module.startswith(f"{each.bound}.")}
        return {each.bound: each.bound if each.bound in plain else each.path for each in found}

    @cached_property
    def runs(self) -> list[int]:
        """The statements that do something when the file is run as a module."""
        return [
            index
            for index, node in enumerate(self.body)
            if self._acts(node) or (isinstance(node, ast.If) and "__main__" in ast.unparse(node.test))
        ]

    @cached_property
    def effects(self) -> list[int]:
        """The statements that do something when the file is imported, such as to register an operator."""
        return [index for index, node in enumerate(self.body) if self._acts(node)]

    def _acts(self, node: ast.stmt) -> bool:
        if isinstance(node, ast.Expr):
            return not isinstance(node.value, ast.Constant)
        if isinstance(node, ast.If):
            return "__name__" not in (test := ast.unparse(node.test)) and "TYPE_CHECKING" not in test
        if isinstance(node, FUNCTIONS):  # @operator.register_fake
            return any(self._is_ours(_head(each)) for each in node.decorator_list)
        if isinstance(node, ast.Assign):
            return not all(isinstance(target, ast.Name | ast.Tuple) for target in node.targets)
        return isinstance(node, COMPOUND | ast.AugAssign | ast.Delete)

    @cache  # noqa: B019
    def name(self, item: Item) -> str:
        """What an item is called, for people."""
        node = self.body[item.at]
        name = next(iter(_binds(node)), type(node).__name__.lower())
        if item.member >= 0:
            member = node.body[item.member]  # type: ignore[attr-defined]
            name += f".{next(iter(_binds(member)), type(member).__name__.lower())}"
        return f"{self.file}:{name}"

    @cache  # noqa: B019  modules live as long as the process
    def written(self, item: Item) -> Written:
        """An item in canonical form; of a class its head."""
        node = self.body[item.at]
        if isinstance(node, ast.ClassDef):
            if item.member < 0:
                head = [*node.bases, *node.keywords, *node.decorator_list]
                return Writer(self).write("class", head)
            member = node.body[item.member]
            fields = [each for each in node.body if isinstance(each, ast.AnnAssign)]
            place = f"field {fields.index(member)} of" if isinstance(member, ast.AnnAssign) else "member of"
            return Writer(self, [_class_scope(node)]).write(place, member, Use(node.name, self.file))
        return Writer(self).write("", node)

    @cache  # noqa: B019
    def members(self, index: int) -> list[tuple[str, int]]:
        """The members of a class that count where they are mentioned, with "" for those that always do."""
        node = self.body[index]
        if not isinstance(node, ast.ClassDef):
            return []
        closed = not node.bases and all(self.path(_called(each)).endswith("dataclass") for each in node.decorator_list)
        found = []
        for place, member in enumerate(node.body):
            if isinstance(member, ast.Pass) or _is_text(member):
                continue
            names = _binds(member)
            always = not closed or not names or all(name.startswith("__") for name in names)
            found += [("" if always else name, place) for name in names or [""]]
        return found

    def _is_ours(self, name: str) -> bool:
        return name in self.bound or self.imports.get(name, "").startswith(OURS)

    def path(self, node: ast.expr) -> str:
        """A name or a chain of attributes with what its first part was imported as; empty for anything else."""
        if isinstance(node, ast.Name):
            return self.imports.get(node.id, node.id)
        if isinstance(node, ast.Attribute) and (head := self.path(node.value)):
            return f"{head}.{node.attr}"
        return ""


OURS = tuple(f"{folder.split('/')[0]}" for folder in FOLDERS)
module_of = cache(Module)


def _flat(body: Iterable[ast.AST]) -> Iterator[ast.AST]:
    """The statements of a file, and those within its own if, for, with and try."""
    for node in body:
        yield node
        if isinstance(node, COMPOUND | ast.ExceptHandler):
            yield from _flat(
                child for child in ast.iter_child_nodes(node) if isinstance(child, ast.stmt | ast.ExceptHandler)
            )


def _binds(node: ast.AST) -> list[str]:
    """The names that a statement gives a meaning to where it stands, but for imports; each once."""
    if isinstance(node, ast.ClassDef | FUNCTIONS):
        return [node.name]
    if isinstance(node, ast.Import | ast.ImportFrom):
        return []
    return list(dict.fromkeys(_stored(node)))


def _stored(node: ast.AST) -> Iterator[str]:
    """The names that a piece of code binds in its own scope, in their order, but for imports."""
    if isinstance(node, ast.ClassDef | FUNCTIONS):
        yield node.name
        return
    if isinstance(node, ast.Lambda):
        return
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store | ast.Del):
        yield node.id
    elif isinstance(node, ast.ExceptHandler | ast.MatchAs | ast.MatchStar) and node.name:
        yield node.name
    for child in ast.iter_child_nodes(node):
        if isinstance(node, COMPREHENSIONS):
            yield from (walrus.target.id for walrus in ast.walk(child) if isinstance(walrus, ast.NamedExpr))
        else:
            yield from _stored(child)


def _called(node: ast.expr) -> ast.expr:
    return node.func if isinstance(node, ast.Call) else node


def _head(node: ast.expr) -> str:
    """The first name of a decorator."""
    while isinstance(node, ast.Call | ast.Attribute):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


def _is_text(node: ast.AST) -> bool:
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


# ---- canonical form -------------------------------------------------------------------------------------------------

CLASS = "a class"  # no name: in the scope of a class's body
Scope = dict[str, str]  # what a local name is written as; a path with dots behind "=" for an import


def _class_scope(node: ast.ClassDef) -> Scope:
    """The names of a class's body, by which others may ask for them; its functions do not see them."""
    return {name: name for each in node.body for name in _binds(each)} | {CLASS: ""}


class Writer:
    """Writes one item of a file."""

    def __init__(self, module: Module, scopes: Iterable[Scope] = ()):
        self.module = module
        self.scopes: list[Scope] = list(scopes)
        self.parts: list[Part] = []
        self.mentioned: set[str] = set()
        self.numbered = 0
        self.annotated = module.reads_annotations

    def write(self, title: str, node: object, *of: Use) -> Written:
        """The canonical form of a node or some nodes."""
        self.parts += [title, *of]
        self.node(node)
        return Written(tuple(_joined(self.parts)), frozenset(self.mentioned))

    def node(self, node: object) -> None:
        """Write anything of a syntax tree."""
        if isinstance(node, list):
            self.parts.append("[")
            for each in node:
                self.node(each)
            self.parts.append("]")
        elif not isinstance(node, ast.AST):
            self.parts.append(f"{node!r},")
        elif not _is_text(node) and not isinstance(node, ast.Global | ast.Nonlocal):
            getattr(self, f"_{type(node).__name__.lower()}", self._any)(node)

    def _any(self, node: ast.AST, but: tuple[str, ...] = ()) -> None:
        """A node by its name and its fields that are not empty."""
        self.parts.append(f"{type(node).__name__}(")
        for name, value in ast.iter_fields(node):
            if name not in ("ctx", "kind", "type_comment", "type_params", *but) and value not in (None, []):
                self.parts.append(f"{name}=")
                self.node(value)
        self.parts.append(")")

    # what means something else than it says

    def _name(self, node: ast.Name) -> None:
        self._path(node.id, [])

    def _attribute(self, node: ast.Attribute) -> None:
        attributes, head = [node.attr], node.value
        while isinstance(head, ast.Attribute):
            attributes.append(head.attr)
            head = head.value
        self.mentioned.update(attributes)
        if isinstance(head, ast.Name):
            self._path(head.id, attributes[::-1])
        else:
            self._any(node)

    def _path(self, name: str, attributes: list[str]) -> None:
        """A name, and attributes of what it means."""
        meaning = next((self._local(scope, name) for scope in reversed(self.scopes) if name in scope), None)
        if meaning is None and name in self.module.bound:
            self.parts += [Use(".".join((name, *attributes)), self.module.file), ","]
            return
        if meaning is None:
            meaning = f"={self.module.imports.get(name, name)}"
        path = ".".join((meaning.removeprefix("="), *attributes))
        ours = meaning.startswith("=") and path.startswith(tuple(f"{top}." for top in OURS))
        self.parts += [Use(path) if ours and not f"{path}.".startswith(f"{PLUMBING}.") else path, ","]

    def _local(self, scope: Scope, name: str) -> str:
        if not scope[name]:
            self.numbered += 1
            scope[name] = f"%{self.numbered}"
        return scope[name]

    def _import(self, node: ast.Import | ast.ImportFrom) -> None:
        """Of others, it may fail; of ours, what it binds is written where it is used."""
        paths = (each.path for each in of_statement(node, self.module.package))
        self.parts += [f"import {path}," for path in paths if not path.startswith(OURS)]

    _importfrom = _import

    def _constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and re.fullmatch(r"[\w/]+\.cu|snippets(\.\w+)+", node.value):
            self.parts.append(Names(node.value, self.module.file))
        self.parts.append(f"{node.value!r},")

    # text for people

    def _raise(self, node: ast.Raise) -> None:
        self.parts.append("raise ")
        self.node(_called(node.exc) if node.exc else None)

    def _assert(self, node: ast.Assert) -> None:
        self.parts.append("assert ")
        self.node(node.test)

    def _call(self, node: ast.Call) -> None:
        if (called := self.module.path(node.func)) in CALLS_FOR_READERS or called.endswith("Error"):
            self.node(node.func)
            return
        if isinstance(node.func, ast.Name) and node.func.id in ("getattr", "setattr", "hasattr"):
            self.mentioned.update(str(each.value) for each in node.args if isinstance(each, ast.Constant))
        self._any(node)

    def _annassign(self, node: ast.AnnAssign) -> None:
        """As the same assignment without an annotation."""
        self.parts.append("Assign(targets=[")
        self.node(node.target)
        self.parts.append("]")
        if node.value is not None:
            self.parts.append("value=")
            self.node(node.value)
        if self.annotated:
            self.node(node.annotation)
        self.parts.append(")")

    def _arg(self, node: ast.arg) -> None:
        self.parts.append(f"{node.arg},")
        if self.annotated:
            self.node(node.annotation)

    def _keyword(self, node: ast.keyword) -> None:
        self.mentioned.add(node.arg or "")
        self._any(node)

    # scopes

    def _functiondef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        outer = self.annotated
        self.annotated |= any(
            not self.module.path(_called(each)).startswith(READ_NO_ANNOTATIONS) for each in node.decorator_list
        )
        self._bound(node.name)
        self.node(node.decorator_list)
        self._function(node, node.body)
        if self.annotated:
            self.node(node.returns)
        self.annotated = outer

    _asyncfunctiondef = _functiondef

    def _lambda(self, node: ast.Lambda) -> None:
        self._function(node, node.body)

    def _function(
        self, node: ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda, body: list[ast.stmt] | ast.expr
    ) -> None:
        """Defaults outside, arguments and body inside."""
        arguments = node.args
        self.parts.append(f"{type(node).__name__}(")
        self.node([*arguments.defaults, *arguments.kw_defaults])
        own = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
        own += [each for each in (arguments.vararg, arguments.kwarg) if each]
        statements = body if isinstance(body, list) else [body]
        elsewhere = {name for each in statements for found in ast.walk(each)
                     if isinstance(found, ast.Global | ast.Nonlocal) for name in found.names}  # fmt: skip
        scope = {name: "" for each in statements for name in _stored(each) if name not in elsewhere}
        scope |= {name: f"={path}" for name, path in self.module.imported(statements).items()}
        visible = [scope for scope in self.scopes if CLASS not in scope]
        outer, self.scopes = self.scopes, [*visible, scope | {each.arg: each.arg for each in own}]
        for name in ("posonlyargs", "args", "vararg", "kwonlyargs", "kwarg"):
            self.parts.append(f"{name}=")
            self.node(getattr(arguments, name))
        self.node(body)
        self.scopes = outer
        self.parts.append(")")

    def _classdef(self, node: ast.ClassDef) -> None:
        """Within a function."""
        self._bound(node.name)
        self.node([*node.bases, *node.keywords, *node.decorator_list])
        self.scopes.append(_class_scope(node))
        self.node(node.body)
        self.scopes.pop()

    def _comprehension_of(self, node: ast.AST) -> None:
        targets = [each.target for each in node.generators]  # type: ignore[attr-defined]
        self.scopes.append({name: "" for target in targets for name in _stored(target)})
        self.node(node.generators)  # type: ignore[attr-defined]
        self._any(node, but=("generators",))
        self.scopes.pop()

    _listcomp = _setcomp = _dictcomp = _generatorexp = _comprehension_of

    def _excepthandler(self, node: ast.AST) -> None:
        if name := getattr(node, "name", None):
            self._bound(name)
        self._any(node, but=("name",))

    _matchas = _matchstar = _excepthandler

    def _bound(self, name: str) -> None:
        """A name where a statement binds it; at the top level nothing depends on which it is."""
        if self.scopes:
            self._path(name, [])


def _joined(parts: Iterable[Part]) -> Iterator[Part]:
    """Texts beside each other as one."""
    texts: list[str] = []
    for part in parts:
        if isinstance(part, str):
            texts.append(part)
        else:
            yield from ("".join(texts), part)
            texts = []
    yield "".join(texts)


# ---- what is reached ------------------------------------------------------------------------------------------------


METHOD = tuple(("tests/benchmarks/method.py", name) for name in ("measure_point", "ceilings"))
SWEEPS = "tests/benchmarks/sweeps/"
ALTERNATIVES = tuple(("tests/benchmarks/alternatives.py", name) for name in ("checked", "timed"))


class Code:
    """The files of ours at some time, by their paths."""

    def __init__(self, texts: Mapping[str, str]):
        self.texts = texts

    @classmethod
    def of(cls, root: Path = ROOT) -> "Code":
        """The files below a root."""
        files = [path for folder in FOLDERS for path in (root / folder).rglob("*") if path.suffix in (".py", ".cu")]
        return cls({path.relative_to(root).as_posix(): path.read_text(encoding="utf-8") for path in sorted(files)})

    @classmethod
    def at(cls, commit: str, root: Path = ROOT) -> "Code":
        """The files at a commit.

        Raises:
            subprocess.CalledProcessError: git does not know it here.
        """
        git = ["git", "-C", str(root)]
        there = subprocess.run([*git, "ls-tree", "--name-only", commit, *FOLDERS], capture_output=True, check=True)
        archive = [*git, "archive", "--format=tar", commit, *there.stdout.decode().split()]
        packed = io.BytesIO(subprocess.run(archive, capture_output=True, check=True).stdout)
        with tarfile.open(fileobj=packed) as files:
            found = {each.name: files.extractfile(each) for each in files if each.name.endswith((".py", ".cu"))}
            return cls({name: file.read().decode() for name, file in sorted(found.items()) if file})

    def measured(self, case_file: str, plan: str = "") -> Reached:
        """What the rows of a case can reach: whatever its `prepare` uses. Which points there are changes no row.

        Args:
            plan: the file of a sweep, which uses the case; all of it and what tries the alternatives is reached, too.

        Raises:
            KeyError: a file or a name that is used is not there.
            SyntaxError: a file that is reached is no Python.
        """
        sweep = [(plan, ""), *ALTERNATIVES] if plan else []
        return Search(self, [(case_file, "CASE"), *sweep]).found()

    def printed(self, script: str) -> Reached:
        """What a script can reach that runs as a module. Raises as `measured`."""
        search = Search(self, [])
        search.started(script)
        return search.found()

    def method(self) -> Reached:
        """What decides how anything is measured. Raises as `measured`."""
        return Search(self, METHOD).found()

    def module(self, file: str) -> Module:
        """A file of ours."""
        return module_of(file, self.texts[file])

    def file_of(self, path: str) -> tuple[str, list[str]]:
        """The file that a path with dots leads into, and the names that follow; no file where it is none of ours."""
        names = path.split(".")
        for length in range(len(names), 0, -1):
            base = "/".join(names[:length])
            for file in (f"{base}.py", f"{base}/__init__.py"):
                if file in self.texts:
                    return file, names[length:]
        return "", names


class Search:
    """Follows uses from some roots, each item once, in the order in which they are met."""

    def __init__(self, code: Code, roots: Iterable[tuple[str, str]]):
        self.code = code
        self.numbers: dict[Item, int] = {}
        self.open: dict[Item, list[tuple[str, Item]]] = {}  # of classes and modules, what a mention would reach
        self.mentioned: set[str] = set()
        self.files: set[str] = set()
        for file, name in roots:
            if name:
                self.targets(Use(name, file))
            else:
                self.whole(file)

    def found(self) -> Reached:
        """What was reached."""
        done: dict[Item, str] = {}
        own: dict[str, list[str]] = {}
        while True:
            waiting = [item for item in self.numbers if item not in done]
            if not waiting and not self.mention():
                break
            for item in waiting:
                done[item], alone = self.rendered(item)
                own.setdefault(self.named(item), []).append(alone)
        functions = {name: _hash("\n".join(texts)) for name, texts in sorted(own.items()) if any(texts)}
        return Reached(_hash("\n".join(done[item] for item in self.numbers)), functions)

    def named(self, item: Item) -> str:
        return item.file if item.at < 0 else self.code.module(item.file).name(item)

    def rendered(self, item: Item) -> tuple[str, str]:
        """An item as text: with the numbers of what it uses, and by itself."""
        if item.at < 0:
            text = tokens(self.code.texts[item.file]) if item.file.endswith(".cu") else ""
            return text, text
        written = self.written(item)
        self.mentioned |= written.mentioned
        texts, alone, seen = [], [], dict[str, int]()
        for part in written.parts:
            text = part if isinstance(part, str) else self.targets(part)
            texts.append(text)
            alone.append(text if isinstance(part, str) else f"#{seen.setdefault(text, len(seen))}")
        return "".join(texts), "".join(alone)

    def written(self, item: Item) -> Written:
        """The canonical form of an item; of CASE, what it prepares."""
        module = self.code.module(item.file)
        node = module.body[item.at]
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "CASE" and isinstance(node.value, ast.Call):
            said = [each.value for each in node.value.keywords if each.arg == "prepare"]
            own = [ast.Name("prepare", ast.Load())] if "prepare" in module.bound else node.value
            return Writer(module).write("case", said or own)
        return module.written(item)

    def targets(self, part: Use | Names) -> str:
        """Note what a use leads to; returns it as text."""
        if isinstance(part, Names):
            self.read(part)
            return ""
        if part.file:
            file, names = part.file, part.path.split(".")
        else:
            file, names = self.code.file_of(part.path)
        for _ in range(20):  # a file may import a name and hand it on
            module = self.code.module(file) if file else None
            if module is None or not names or names[0] in module.bound:
                break
            if (path := module.imports.get(names[0])) is None:
                break
            file, names = self.code.file_of(".".join((path, *names[1:])))
        if module is None:
            return ".".join(names)
        if not names:
            return f"#{self.number(Item(file, -1), self.named_in(module))}"
        if names[0].startswith("__"):
            return ".".join(names)
        if names[0] not in module.bound:
            raise KeyError(f"{file}: expected a name {names[0]!r} at its top level, got none")
        numbers = [f"#{self.statement(file, index)}.{place}" for index, place in module.bound[names[0]]]
        return ".".join(("|".join(numbers), *names[1:]))

    def named_in(self, module: Module) -> list[tuple[str, Item]]:
        """What a mention may reach in a module that is handed around."""
        return [(name, Item(module.file, index)) for name, at in module.bound.items() for index, _ in at]

    def statement(self, file: str, index: int) -> int:
        """The number of a statement; with it comes what its file does when it is imported."""
        module = self.code.module(file)
        item = Item(file, index)
        if item in self.numbers:
            return self.numbers[item]
        number = self.number(item, [(name, Item(file, index, place)) for name, place in module.members(index)])
        if file not in self.files:
            self.files.add(file)
            for effect in module.effects:
                self.statement(file, effect)
        return number

    def number(self, item: Item, members: list[tuple[str, Item]]) -> int:
        if item not in self.numbers:
            self.numbers[item] = len(self.numbers)
            self.open[item] = members
        return self.numbers[item]

    def mention(self) -> bool:
        """Reach the members that are mentioned by now; returns whether there were new ones."""
        before = len(self.numbers)
        for members in list(self.open.values()):
            for name, item in members:
                if not name or name in self.mentioned:
                    if item.member < 0:
                        self.statement(item.file, item.at)
                    else:
                        self.number(item, [])
        return len(self.numbers) > before

    def read(self, names: Names) -> None:
        """A file that a text names, from its own folder or as a module."""
        beside = (PurePosixPath(names.file).parent / names.text).as_posix()
        if beside in self.code.texts:
            self.number(Item(beside, -1), [])
        elif names.text.startswith(OURS) and not (found := self.code.file_of(names.text))[1]:
            self.started(found[0])

    def started(self, file: str) -> None:
        """What a file does that runs as a module."""
        for index in self.code.module(file).runs:
            self.statement(file, index)

    def whole(self, file: str) -> None:
        """All of a file."""
        for index in range(len(self.code.module(file).body)):
            self.statement(file, index)


def _hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:16]
