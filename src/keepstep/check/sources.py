"""Reads a script and the modules that it imports from its own tree. Nothing is executed."""

from __future__ import annotations

import ast
import io
import tokenize
import warnings
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path

from keepstep.check.finding import NotLooked

MOST_FILES = 2000
_TOO_DEEP = "too deeply nested for Python's parser"
MOST_BYTES = 8 << 20  # of one file; no module that a person wrote is larger

# Beside and above the script, these mark the top of its tree.
_TOP = (".git", "pyproject.toml", "setup.py", "setup.cfg")


class CannotLookError(Exception):
    """The script itself cannot be looked at; the text says what was seen and wanted."""


@dataclass(frozen=True, slots=True)
class Broken:
    """Source that Python does not accept."""

    file: str
    line: int
    column: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """One parsed file."""

    file: str  # as it is shown
    path: Path
    name: str  # dotted, as the tree's modules import it; "__main__" for the script
    tree: ast.Module
    own: dict[str, str] = field(default_factory=dict)  # dotted names of the tree to the file


@dataclass(frozen=True, slots=True, kw_only=True)
class Sources:
    """What was read, and what was not."""

    modules: tuple[Module, ...]  # the script first
    broken: tuple[Broken, ...]
    not_looked: tuple[NotLooked, ...]
    foreign: frozenset[str]  # top-level packages that are imported from elsewhere


def read_sources(script: Path, include: tuple[Path, ...] = ()) -> Sources:
    """Read ``script`` and follow its imports to files under its tree or under ``include``.

    Raises:
        CannotLookError: The script is missing, no file, or no Python source.
    """
    text = _read_script(script)
    reader = _Reader(_roots(script, include))
    reader.add(script, "__main__", text)
    reader.follow()
    return reader.result()


def _read_script(script: Path) -> str:
    wanted = "wanted a Python script"
    if script.is_dir():
        raise CannotLookError(f"{script}: is a folder; {wanted} in it, such as {script}/train.py")
    if not script.exists():
        raise CannotLookError(f"{script}: no such file; {wanted}")
    if not script.is_file():
        raise CannotLookError(f"{script}: is no regular file; {wanted}")
    if script.suffix == ".ipynb":
        raise CannotLookError(
            f"{script}: is a notebook; {wanted}: jupyter nbconvert --to script {script}"
        )
    try:
        return _text(script)
    except (OSError, ValueError) as error:
        raise CannotLookError(f"{script}: {_why(error)}; {wanted}") from None


def _why(error: Exception) -> str:
    if isinstance(error, OSError):
        return f"cannot be read: {error.strerror or error}"
    if isinstance(error, UnicodeDecodeError):
        return f"is not text in {error.encoding.upper()}: byte {error.start} does not fit"
    return str(error)


def _text(path: Path) -> str:
    """Return the source, in the encoding that the file declares (UTF-8 without one)."""
    if path.stat().st_size > MOST_BYTES:
        raise ValueError(f"is larger than {MOST_BYTES >> 20} MiB")
    data = path.read_bytes()
    if b"\0" in data:
        raise ValueError("holds zero bytes: it is binary, not text")
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
    except SyntaxError as error:
        raise ValueError(
            f"is not text in UTF-8, and declares no other encoding that Python knows: {error.msg}"
        ) from None
    return data.decode(encoding)


def _roots(script: Path, include: tuple[Path, ...]) -> tuple[Path, ...]:
    """Return folders that imports are looked for in: as Python does, then the project's own."""
    folder = script.resolve().parent
    roots = [folder]
    for above in (folder, *folder.parents):
        if any((above / mark).exists() for mark in _TOP):
            roots += [above, above / "src"]
            break
    roots += [path.resolve() for path in include]
    return tuple(dict.fromkeys(root for root in roots if root.is_dir()))


class _Reader:
    def __init__(self, roots: tuple[Path, ...]) -> None:
        self.roots = roots
        self.modules: dict[Path, Module] = {}
        self.broken: list[Broken] = []
        self.not_looked: list[NotLooked] = []
        self.foreign: set[str] = set()
        self.queue: deque[Module] = deque()
        self.own: dict[str, str] = {}
        self.seen: set[Path] = set()

    def add(self, path: Path, name: str, text: str) -> None:
        self.seen.add(path.resolve())
        shown = _shown(path)
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of the source that is read
                tree = ast.parse(text, filename=shown)
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            self.broken.append(
                Broken(
                    shown,
                    getattr(error, "lineno", 0) or 0,
                    getattr(error, "offset", 0) or 0,
                    getattr(error, "msg", "") or str(error) or _TOO_DEEP,
                )
            )
            return
        module = Module(file=shown, path=path, name=name, tree=tree, own=self.own)
        self.own[name] = shown
        self.modules[path.resolve()] = module
        self.queue.append(module)

    def follow(self) -> None:
        while self.queue:
            module = self.queue.popleft()
            for dotted in _imports(module):
                self._one(module, dotted)
            for line in _dynamic(module.tree):
                self.not_looked.append(
                    NotLooked(
                        what=f"{module.file}:{line}",
                        why="imports a module whose name is only known when it runs",
                        matters=False,
                        mend="name its folder with --include, or check that file as well",
                    )
                )

    def _one(self, module: Module, dotted: str) -> None:
        found = self._find(dotted)
        if not found:
            top = dotted.partition(".")[0]
            if not any((root / top).is_dir() for root in self.roots):
                self.foreign.add(top)
            return
        for path, name in found:
            if path.resolve() in self.seen:
                continue
            if len(self.seen) >= MOST_FILES:
                self._cut()
                return
            self._read(module, path, name)

    def _cut(self) -> None:
        cut = NotLooked(
            what=f"modules beyond the first {MOST_FILES}",
            why="the script's tree is larger than what one look reads",
            matters=True,
            mend="check the parts that call torch.distributed one by one",
        )
        if cut not in self.not_looked:
            self.not_looked.append(cut)

    def _read(self, module: Module, path: Path, name: str) -> None:
        try:
            text = _text(path)
        except (OSError, ValueError) as error:
            self.seen.add(path.resolve())
            self.not_looked.append(
                NotLooked(
                    what=_shown(path),
                    why=f"{module.file} imports it, and it {_why(error)}",
                    matters=True,
                    mend=f"make it readable: ls -l {_shown(path)}",
                )
            )
            return
        self.add(path, name, text)

    def _find(self, dotted: str) -> list[tuple[Path, str]]:
        """Return the files that ``import dotted`` runs: the packages above it, then itself."""
        parts = dotted.split(".")
        for root in self.roots:
            files: list[tuple[Path, str]] = []
            for count in range(1, len(parts) + 1):
                base = root.joinpath(*parts[:count])
                name = ".".join(parts[:count])
                if (base / "__init__.py").is_file():
                    files.append((base / "__init__.py", name))
                elif base.with_suffix(".py").is_file():
                    files.append((base.with_suffix(".py"), name))
            if files and _inside(files[-1][0], root):
                return files
        return []

    def result(self) -> Sources:
        return Sources(
            modules=tuple(self.modules.values()),
            broken=tuple(self.broken),
            not_looked=tuple(self.not_looked),
            foreign=frozenset(self.foreign),
        )


def _inside(path: Path, root: Path) -> bool:
    """Return whether a file belongs to the tree and not to installed packages inside it."""
    try:
        parts = path.relative_to(root).parts
    except ValueError:
        return False
    return not {"site-packages", "dist-packages"} & set(parts)


def _shown(path: Path) -> str:
    """Return the path as a person in this folder would write it."""
    try:
        return str(path.resolve().relative_to(Path.cwd()))
    except (ValueError, OSError):
        return str(path)


def _imports(module: Module) -> list[str]:
    """Return every dotted name that the module imports; `from a import b` gives a and a.b."""
    names: list[str] = []
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = absolute(module, node)
            if base:
                names.append(base)
                names += [f"{base}.{alias.name}" for alias in node.names if alias.name != "*"]
    return list(dict.fromkeys(names))


def absolute(module: Module, node: ast.ImportFrom) -> str:
    """Return the dotted name that an import is from, relative ones made absolute."""
    if not node.level:
        return node.module or ""
    package = module.name.split(".")
    up = node.level if module.path.name != "__init__.py" else node.level - 1
    base = package[: len(package) - up] if up else package
    return ".".join([*base, *([node.module] if node.module else [])])


def _dynamic(tree: ast.Module) -> list[int]:
    """Return the lines that import by a name that is not written there."""
    lines = []
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not node.args:
            continue
        called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        called = node.func.id if isinstance(node.func, ast.Name) else called
        named = isinstance(node.args[0], ast.Constant)
        if called in ("import_module", "__import__", "run_path", "run_module") and not named:
            lines.append(node.lineno)
    return lines
