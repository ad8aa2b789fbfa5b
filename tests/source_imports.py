"""The modules that a Python file imports, read from its text, and the cycles of imports between files.

In: source text. Out: lines and dotted names. Import statements count wherever they are: at the top, inside functions
and classes, under TYPE_CHECKING. So do calls of `import_module` and `__import__` with a name that the same file spells:
a literal, a constant, the variable of a loop over literals, an entry of a table, or such texts put together. The part
of a name that only a run shows is `*`.

Not seen: what another process imports (`python -m`, the text of `python -c`), `exec`, `runpy`, and import machinery
that is called by other names.
"""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from functools import cache
from itertools import product

from tests.syntax import nodes

IMPORTING_CALLS = {"import_module", "__import__"}
UNKNOWN = "*"
RELATIVE = ""


@cache
def imported_modules(module: str, source: str) -> tuple[tuple[int, str], ...]:
    """Return the line and the dotted name of each import in `source`, the text of the module `module`.

    A relative import has the name `RELATIVE`; a function that imports by name and is renamed or handed on, `UNKNOWN`.
    """
    imports = [*_statements(source)]
    if any(name in source for name in IMPORTING_CALLS):
        imports += _calls(module, ast.parse(source))
    return tuple(imports)


def _statements(source: str) -> Iterator[tuple[int, str]]:
    for node in nodes(source):
        match node:
            case ast.Import(names=names):
                yield from ((node.lineno, alias.name) for alias in names)
            case ast.ImportFrom(level=level, module=name) if level or name is None:
                yield node.lineno, RELATIVE
            case ast.ImportFrom(module=str(name), names=names):  # `from flatout import read` imports flatout.read
                yield from ((node.lineno, f"{name}.{alias.name}") for alias in names)


def _calls(module: str, tree: ast.AST) -> Iterator[tuple[int, str]]:
    called = {id(node.func) for node in ast.walk(tree) if isinstance(node, ast.Call)}
    waiting: list[tuple[ast.AST, _Texts | None]] = [(tree, None)]
    while waiting:
        scope, outside = waiting.pop()
        texts = _Texts(module, scope, outside)
        for node in _nodes_of_scope(scope):
            match node:
                case ast.FunctionDef() | ast.AsyncFunctionDef():
                    waiting.append((node, texts))
                case ast.Call(func=ast.Name(id=function) | ast.Attribute(attr=function)) if function in IMPORTING_CALLS:
                    for name in sorted(texts.of(_first_argument(node))):
                        yield node.lineno, RELATIVE if name.startswith(".") else name
                case ast.Name(id=function) | ast.Attribute(attr=function) if function in IMPORTING_CALLS:
                    if id(node) not in called:
                        yield node.lineno, UNKNOWN
                case ast.alias(name=function, asname=str()) if function in IMPORTING_CALLS:
                    yield node.lineno, UNKNOWN


def _nodes_of_scope(scope: ast.AST) -> Iterator[ast.AST]:
    """Yield all nodes below a file or a function; of the functions in it only the definition itself."""
    waiting = [*ast.iter_child_nodes(scope)]
    while waiting:
        node = waiting.pop()
        yield node
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            waiting.extend(ast.iter_child_nodes(node))


def _first_argument(call: ast.Call) -> ast.expr | None:
    if call.args:
        return call.args[0]
    return next((keyword.value for keyword in call.keywords if keyword.arg == "name"), None)


class _Texts:
    """The texts that an expression in one scope, a file or a function, can be, as far as the file itself says."""

    def __init__(self, module: str, scope: ast.AST, outside: _Texts | None) -> None:
        # The file may be the package `module` itself, or a module in a package.
        self._surroundings = {"__name__": {module}, "__package__": {module, module.rpartition(".")[0]}}
        self._outside = outside  # of the scope around this one
        self._values: dict[str, list[ast.expr | None]] = defaultdict(list)  # of a name; None: only a run shows it
        self._items: dict[str, list[ast.expr]] = defaultdict(list)  # the iterables that a loop takes a name from
        self._reading: set[str] = set()
        for node in _nodes_of_scope(scope):
            self._read(node)

    def _read(self, node: ast.AST) -> None:
        """Note what `node` binds names to. A name has all values that its scope gives it, wherever it is read."""
        match node:
            case ast.Assign(targets=[ast.Name(id=name)], value=value):
                self._values[name].append(value)
            case ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value):
                self._values[name].append(value)
            case ast.NamedExpr(target=ast.Name(id=name), value=value):
                self._values[name].append(value)
            case (
                ast.For(target=ast.Name(id=name), iter=items) | ast.comprehension(target=ast.Name(id=name), iter=items)
            ):
                self._items[name].append(items)
            case ast.arg(arg=name):
                self._values[name].append(None)
            case ast.Assign(targets=targets):
                self._hide(targets)
            case ast.AugAssign(target=target) | ast.For(target=target) | ast.comprehension(target=target):
                self._hide([target])

    def _hide(self, targets: list[ast.expr]) -> None:
        for target in targets:
            for each in ast.walk(target):
                if isinstance(each, ast.Name) and isinstance(each.ctx, ast.Store):
                    self._values[each.id].append(None)

    def of(self, expression: ast.expr | None) -> set[str]:
        """Return every text that the expression can be."""
        match expression:
            case ast.Constant(value=str(text)):
                return {text}
            case ast.Name(id=name):
                return self.of_name(name)
            case ast.Subscript(value=table):
                return self._of_items(table)
            case ast.JoinedStr(values=parts):
                return self._joined(parts)
            case ast.FormattedValue(value=value, conversion=-1, format_spec=None):
                return self.of(value)
            case ast.BinOp(left=left, op=ast.Add(), right=right):
                return self._joined([left, right])
            case ast.IfExp(body=body, orelse=orelse):
                return self.of(body) | self.of(orelse)
        return {UNKNOWN}

    def of_name(self, name: str) -> set[str]:
        """Return every text that the name can stand for; what it is made of itself can be any."""
        if name not in self._values and name not in self._items:
            return self._outside.of_name(name) if self._outside else self._surroundings.get(name, {UNKNOWN})
        if name in self._reading:
            return {UNKNOWN}
        self._reading.add(name)
        values = [self.of(value) for value in self._values.get(name, ())]
        items = [self._of_items(iterable) for iterable in self._items.get(name, ())]
        self._reading.remove(name)
        return set().union(*values, *items)

    def _of_items(self, container: ast.expr | None) -> set[str]:
        """Return every text in a table: the values of a mapping, the items of a sequence or a set."""
        match container:
            case ast.Dict(values=items) | ast.Tuple(elts=items) | ast.List(elts=items) | ast.Set(elts=items):
                return set().union(*(self._of_item(item) for item in items))
            case ast.Name(id=name) if name in self._values and name not in self._reading:
                self._reading.add(name)
                items = [self._of_items(value) for value in self._values[name]]
                self._reading.remove(name)
                return set().union(*items)
            case ast.Name(id=name) if name not in self._values and self._outside:
                return self._outside._of_items(container)
        return {UNKNOWN}

    def _of_item(self, item: ast.expr) -> set[str]:
        return self._of_items(item.value) if isinstance(item, ast.Starred) else self.of(item)

    def _joined(self, parts: list[ast.expr]) -> set[str]:
        return {"".join(texts) for texts in product(*(self.of(part) for part in parts))}


def import_graph(sources: Mapping[str, str]) -> dict[str, set[str]]:
    """Map each module of `sources`, text by dotted name, to those of them that it imports.

    Importing `a.b.c` also runs `a` and `a.b`, so these count too, save those that the importing module is in: they run
    before it.
    """
    graph: dict[str, set[str]] = {}
    for module, source in sources.items():
        names = {name for _, name in imported_modules(module, source)}
        targets = set().union(*(_targets(name, sources) for name in names))
        packages = {package for target in targets for package in _packages(target)}
        graph[module] = (targets | (packages - set(_packages(module)))) & sources.keys() - {module}
    return graph


def _targets(name: str, modules: Mapping[str, str]) -> set[str]:
    """Return the modules that importing `name` runs: `a.b` of `from a import b` is a module, or a name in `a`."""
    prefix, is_open, _ = name.partition(UNKNOWN)
    if is_open:
        return {module for module in modules if prefix and module.startswith(prefix)}
    if name in modules:
        return {name}
    package = name.rpartition(".")[0]
    return {package} & modules.keys()


def _packages(module: str) -> list[str]:
    """Return the packages that a module is in: `a` and `a.b` of `a.b.c`."""
    parts = module.split(".")
    return [".".join(parts[:length]) for length in range(1, len(parts))]


def cycles(graph: Mapping[str, set[str]]) -> list[list[str]]:
    """Return each largest set of modules that all import each other, directly or through others, in order of name."""
    reached = {module: _reached(module, graph) for module in graph}
    groups = {
        tuple(sorted(other for other in reached[module] if module in reached[other]))
        for module in graph
        if module in reached[module]
    }
    return [list(group) for group in sorted(groups)]


def _reached(start: str, graph: Mapping[str, set[str]]) -> set[str]:
    reached: set[str] = set()
    waiting = list(graph[start])
    while waiting:
        module = waiting.pop()
        if module not in reached:
            reached.add(module)
            waiting.extend(graph[module])
    return reached
