"""Plug-ins: algorithms, models, data sets and partitions that other packages add to fedsim's own.

A plug-in is found in one of two ways. An installed package declares entry points in the groups
`fedsim.algorithms`, `fedsim.models`, `fedsim.datasets` and `fedsim.partitions`. Or the environment variable
`FEDSIM_PLUGINS` names a module that calls `Registry.register` while it is imported.

Each process looks for both once, at the first look-up of a name. It imports the code of an entry point when
somebody looks up its name or lists all names. docs/plugins.md shows how to write a plug-in.
"""

from __future__ import annotations

import hashlib
import logging
import os
import sys
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import fields, is_dataclass
from importlib import import_module, metadata
from inspect import get_annotations
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from fedsim.base.parameters import list_parameters, suggest_name
from fedsim.errors import FieldError

VARIABLE = "FEDSIM_PLUGINS"
GROUPS = ("fedsim.algorithms", "fedsim.models", "fedsim.datasets", "fedsim.partitions")

_LOG = logging.getLogger(__name__)
_CONTESTED_HINT = "rename one of them, or uninstall the package that you do not mean"
_BROKEN = "mend or uninstall it; specs that do not name it run as ever"

T = TypeVar("T")


class Claim(NamedTuple):
    """One owner's claim to a name. A name with two claims is contested and cannot be used.

    Attributes:
        owner: the owner in words: "fedsim's own", or the code and its package.
        source: package and version, or the module that registered the name; "" for fedsim itself.
        load: function that returns the named object without checking it.
    """

    owner: str
    source: str
    load: Callable[[], Any]


class PluginIndex:
    """All plug-ins that this process has found.

    Attributes:
        lock: held during imports of plug-in code.
        points: the entry points of all kinds; None before the first look-up.
        registered: the claims made by `Registry.register`, by (kind, name).
        loaded: {(kind, name): (object, reason)}; the reason says why there is no object, else "".
        hashes: {package or module: hash of its Python files when its first object was loaded}.
        failed: why modules in `FEDSIM_PLUGINS` could not be imported.
        warned: the warnings that the log already has.
        importing: whether an import of the modules in `FEDSIM_PLUGINS` is in progress.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.points: list[metadata.EntryPoint] | None = None
        self.registered: dict[tuple[str, str], list[Claim]] = {}
        self.loaded: dict[tuple[str, str], tuple[Any, str]] = {}
        self.hashes: dict[str, str] = {}
        self.failed: list[str] = []
        self.warned: set[str] = set()
        self.importing = False

    def load_plugins(self) -> list[metadata.EntryPoint]:
        """Return the entry points; the first call finds them and imports the modules in `FEDSIM_PLUGINS`."""
        with self.lock:
            if self.points is None:
                # Set `points` before the imports: the modules may look up names during their import.
                there = metadata.entry_points()
                self.points = [point for group in GROUPS for point in there.select(group=group)]
                self.importing = True
                for module in list_modules():
                    self._import_module(module)
                self.importing = False
            return self.points

    def _import_module(self, module: str) -> None:
        try:
            import_module(module)
        except (Exception, SystemExit) as error:
            why = f"the module {module!r} of {VARIABLE} cannot be imported: {_words(error)}"
            self.failed.append(why)
            self.warn_once(why)

    def warn_once(self, why: str) -> None:
        """Log a warning, unless the log already has it."""
        if why not in self.warned:
            self.warned.add(why)
            _LOG.warning("%s", why)


_index = PluginIndex()


class Registry(Mapping[str, T]):
    """All objects of one kind that a spec can name, from fedsim and from plug-ins: {name: object}.

    A name with two claims, or with code that cannot be imported, is missing from the mapping; `fault` says
    why. Other names still work.

    Args:
        kind: the kind in plural, such as "algorithms"; the group of the entry points is `fedsim.KIND`.
        one: the kind in singular, for messages.
        own: fedsim's own objects, by name.
        fits: returns whether a plug-in's object is of this kind.
        wanted: the condition of `fits` in words, for messages.
        absent: well-known names that fedsim does not have: a similar name is not what the user meant.
    """

    def __init__(
        self,
        kind: str,
        one: str,
        own: Mapping[str, T],
        fits: Callable[[Any], bool],
        wanted: str,
        absent: Collection[str] = (),
    ) -> None:
        self.kind, self.one, self.own, self.absent = kind, one, own, frozenset(absent)
        self._fits, self._wanted = fits, wanted

    def register(self, name: str, thing: T) -> None:
        """Add a named object to this registry, in this process.

        Call it from a module in `FEDSIM_PLUGINS`: every process of a run imports this module. A second call
        for the same code, such as in a notebook, replaces the first object.

        Args:
            name: the name in specs.
            thing: an object of this registry's kind.

        Raises:
            ValueError: another object has this name.
            TypeError: the object is not of this registry's kind.
        """
        self._check_thing(thing)
        _index.load_plugins()
        who = f"{_module(thing)}.{getattr(_code(thing), '__qualname__', '')}"
        mine = Claim(who, _module(thing), lambda: thing)
        with _index.lock:
            held = _index.registered.setdefault((self.kind, name), [])
            held[:] = [claim for claim in held if claim.owner != who]
            _index.loaded.pop((self.kind, name), None)
            _index.hashes.pop(_top_level(thing), None)
            others = self._claims(name)
            if not others or _index.importing:
                # Keep the claim of a module: the name is then contested, and no spec gets the wrong object.
                held.append(mine)
            if others:
                message = f"{who} cannot be the {self.one} {name!r}: that is {others[0].owner}"
                raise ValueError(f"{message}; {_CONTESTED_HINT}")

    def source(self, name: str) -> str:
        """Return the package and version, or the module, of a named object; "" for fedsim's own."""
        return next((claim.source for claim in self._claims(name)), "")

    def describe_code(self, name: str) -> dict[str, str]:
        """Return {package or module: version and hash of its Python files} of a named object.

        It is {} for fedsim's own objects. Code in a notebook has no file, and so no hash.
        """
        if not (source := self.source(name)):
            return {}
        package, _, version = source.partition(" ")
        return {package: f"{version} {_index.hashes.get(_top_level(self[name]), '')}".strip()}

    def fault(self, path: str, name: str) -> FieldError:
        """Return why a name is missing, as a fault of the spec at this path."""
        if self._claims(name):
            contested = len(self._claims(name)) > 1
            return FieldError(
                path, name, self._resolve_name(name)[1], _CONTESTED_HINT if contested else _BROKEN
            )
        if name.lower() in self.absent:
            hint = f"`fedsim new {self.one} NAME` helps to add it; `fedsim {self.kind}` lists those here"
            return FieldError(path, name, f"is an {self.one} that fedsim does not have", hint)
        close = suggest_name(name, self)
        is_guess = close.startswith("did you mean") or list_modules()
        own = () if is_guess else (f"or a plug-in: {VARIABLE} is not set in this process",)
        return FieldError(path, name, f"no such {self.one}", "; ".join([*_index.failed, close, *own]))

    def __getitem__(self, name: str) -> T:
        value, why = self._resolve_name(name)
        if why:
            raise KeyError(why)
        found: T = value
        return found

    def __iter__(self) -> Iterator[str]:
        points = self._points()
        registered = [name for kind, name in list(_index.registered) if kind == self.kind]
        for name in dict.fromkeys([*self.own, *registered, *(point.name for point in points)]):
            _, why = self._resolve_name(name)
            if not why:
                yield name
            elif self._claims(name):
                _index.warn_once(f"{self.one} {name!r}: {why}")

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def _points(self) -> list[metadata.EntryPoint]:
        return [point for point in _index.load_plugins() if point.group == f"fedsim.{self.kind}"]

    def _claims(self, name: str) -> list[Claim]:
        points = [point for point in self._points() if point.name == name]
        own = [Claim("fedsim's own", "", lambda: self.own[name])] if name in self.own else []
        registered = _index.registered.get((self.kind, name), [])
        return [*own, *registered, *(Claim(*_describe_point(point), point.load) for point in points)]

    def _resolve_name(self, name: str) -> tuple[Any, str]:
        """Return (the named object, ""), or (None, the reason why there is none)."""
        claims = self._claims(name)
        if not claims:
            return None, f"no such {self.one}: {name!r}"
        if len(claims) > 1:
            return None, f"is both {' and '.join(claim.owner for claim in claims)}"
        if name in self.own:
            return self.own[name], ""
        with _index.lock:
            key = self.kind, name
            if key not in _index.loaded:
                _index.loaded[key] = self._load_claim(claims[0])
            return _index.loaded[key]

    def _load_claim(self, claim: Claim) -> tuple[Any, str]:
        try:
            thing = claim.load()
            self._check_thing(thing)
            # Now, because the files may change while this process goes on with the code that it imported.
            if (package := _top_level(thing)) not in _index.hashes:
                _index.hashes[package] = _hash_files(package)
        except (Exception, SystemExit) as error:
            return None, f"the plug-in {claim.owner} cannot be loaded: {_words(error)}"
        return thing, ""

    def _check_thing(self, thing: Any) -> None:
        """Raise an error if the object is of another kind or its parameters cannot be listed.

        Such an object would break the whole catalogue.
        """
        if not self._fits(thing):
            abstract = sorted(getattr(thing, "__abstractmethods__", ()))
            lacks = f": it does not define {', '.join(abstract)}" if abstract else ""
            raise TypeError(f"{thing!r} is not {self._wanted}{lacks}")
        if isinstance(thing, type) and is_dataclass(thing):
            own = [name for name, kind in get_annotations(thing).items() if "ClassVar" not in str(kind)]
            if lost := sorted(set(own).difference(field.name for field in fields(thing))):
                raise TypeError(
                    f"{thing.__name__} has {lost[0]!r}, which is no parameter: write"
                    " `@dataclass(frozen=True, kw_only=True)` above the class"
                )
        list_parameters(_code(thing))


def list_modules() -> list[str]:
    """List the modules in `FEDSIM_PLUGINS`."""
    return [name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()]


def plugin_environment() -> dict[str, str]:
    """Return the environment variables with which other processes of a run find the same plug-ins."""
    return {VARIABLE: ",".join(list_modules())} if list_modules() else {}


def list_plugin_versions() -> dict[str, str]:
    """Return {package or module of a plug-in: version}; "" for a module without a version."""
    named = {p.dist.name: p.dist.version for p in _index.load_plugins() if p.dist is not None}
    imported = {name: sys.modules[name] for name in list_modules() if name in sys.modules}
    return named | {name: str(getattr(each, "__version__", "")) for name, each in imported.items()}


def _describe_point(point: metadata.EntryPoint) -> tuple[str, str]:
    source = f"{point.dist.name} {point.dist.version}" if point.dist is not None else ""
    return f"{point.value} of {source or 'an unknown package'}", source


def _code(thing: Any) -> Any:
    """Return the function or class of an object; data sets and partitions are (function, summary)."""
    return thing[0] if isinstance(thing, tuple) else thing


def _module(thing: Any) -> str:
    return str(getattr(_code(thing), "__module__", ""))


def _top_level(thing: Any) -> str:
    """Return the name of the package, or of the single module, that has an object."""
    return _module(thing).partition(".")[0]


def _hash_files(name: str) -> str:
    """Return a hash of the Python files of an imported package or module; "" if none can be read."""
    module = sys.modules.get(name)
    folders = [Path(folder) for folder in getattr(module, "__path__", ())]
    files = {str(path.relative_to(folder)): path for folder in folders for path in folder.rglob("*.py")}
    if not folders and (file := getattr(module, "__file__", None)):
        files = {Path(file).name: Path(file)}
    found = hashlib.sha256()
    try:
        for place, path in sorted(files.items()):
            found.update(f"{place} {hashlib.sha256(path.read_bytes()).hexdigest()}\n".encode())
    except OSError:  # such as a package in an archive
        return ""
    return found.hexdigest()[:12] if files else ""


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
