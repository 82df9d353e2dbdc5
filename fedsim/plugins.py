"""Plug-ins: methods, models, data sets and partitions of other packages, beside fedsim's own.

An installed package names them as entry points, in the groups `fedsim.algorithms`, `fedsim.models`,
`fedsim.datasets` and `fedsim.partitions`; a module that the variable `FEDSIM_PLUGINS` names registers them
while it is imported. Both are looked for once in each process, when a name is first looked up; the code of an
entry point is imported when its own name is, or when all are listed. docs/plugins.md shows how one is made.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from importlib import import_module, metadata
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
    """One who has a name.

    Attributes:
        who: for people: "fedsim's own", or the code and the package that it is of.
        source: package and version, or the module that registered it; "" for fedsim itself.
        load: gives what the name stands for, unchecked.
    """

    owner: str
    source: str
    load: Callable[[], Any]


class PluginIndex:
    """What there is beside fedsim's own, in this process.

    Attributes:
        lock: held while code of plug-ins is imported.
        points: the entry points of all kinds; None until somebody asks.
        registered: the claims of those that were registered, by kind and name.
        loaded: what entry points gave, or why they gave nothing.
        failed: why modules of the variable could not be imported.
        warned: what the log has been told.
        importing: whether the modules of the variable are just being imported.
    """

    def __init__(self) -> None:
        self.lock = threading.RLock()
        self.points: list[metadata.EntryPoint] | None = None
        self.registered: dict[tuple[str, str], list[Claim]] = {}
        self.loaded: dict[tuple[str, str], tuple[Any, str]] = {}
        self.failed: list[str] = []
        self.warned: set[str] = set()
        self.importing = False

    def load_plugins(self) -> list[metadata.EntryPoint]:
        """Look once: list the entry points, import the modules; gives the former."""
        with self.lock:
            if self.points is None:
                # First of all: the modules look names up themselves while they are imported.
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
        """Tell the log, once."""
        if why not in self.warned:
            self.warned.add(why)
            _LOG.warning("%s", why)


_index = PluginIndex()


class Registry(Mapping[str, T]):
    """What a spec can name of one kind: fedsim's own and what plug-ins bring.

    A name that two claim, and one whose code cannot be imported, is not there, and `fault` says why; whoever
    asks for other names is not disturbed.

    Args:
        kind: "algorithms", say; the entry points' group is `fedsim.KIND`.
        one: what one of them is called.
        own: fedsim's own, by name.
        fits: whether something of a plug-in is one of them.
        wanted: what it has to be, in words.
    """

    def __init__(
        self, kind: str, one: str, own: Mapping[str, T], fits: Callable[[Any], bool], wanted: str
    ) -> None:
        self.kind, self.one, self.own = kind, one, own
        self._fits, self._wanted = fits, wanted

    def register(self, name: str, thing: T) -> None:
        """Have a name stand for this, in this process.

        To be called by a module that `FEDSIM_PLUGINS` names, which every process of a run imports. Calling it
        again, as a notebook does, replaces what was registered of the same code.

        Args:
            name: for the specs.
            thing: as the values of this registry are.

        Raises:
            ValueError: the name is taken.
            TypeError: it is not what it should be.
        """
        self._check_thing(thing)
        _index.load_plugins()
        who = f"{_module(thing)}.{getattr(_code(thing), '__qualname__', '')}"
        mine = Claim(who, _module(thing), lambda: thing)
        with _index.lock:
            held = _index.registered.setdefault((self.kind, name), [])
            held[:] = [claim for claim in held if claim.owner != who]
            _index.loaded.pop((self.kind, who), None)
            others = self._claims(name)
            if not others or _index.importing:
                # A module's claim stands beside the other one's, and no spec gets what it may not mean.
                held.append(mine)
            if others:
                message = f"{who} cannot be the {self.one} {name!r}: that is {others[0].owner}"
                raise ValueError(f"{message}; {_CONTESTED_HINT}")

    def source(self, name: str) -> str:
        """Package and version that bring what a name stands for; "" for fedsim's own."""
        return next((claim.source for claim in self._claims(name)), "")

    def fault(self, path: str, name: str) -> FieldError:
        """Why a name is not there, as a fault of a spec at this path."""
        if self._claims(name):
            contested = len(self._claims(name)) > 1
            return FieldError(
                path, name, self._resolve_name(name)[1], _CONTESTED_HINT if contested else _BROKEN
            )
        hint = "; ".join([suggest_name(name, self), *_index.failed])
        return FieldError(path, name, f"no such {self.one}", hint)

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
        """What a name stands for, or why it stands for nothing."""
        claims = self._claims(name)
        if not claims:
            return None, f"no such {self.one}: {name!r}"
        if len(claims) > 1:
            return None, f"is both {' and '.join(claim.owner for claim in claims)}"
        if name in self.own:
            return self.own[name], ""
        with _index.lock:
            key = self.kind, claims[0].owner
            if key not in _index.loaded:
                _index.loaded[key] = self._load_claim(claims[0])
            return _index.loaded[key]

    def _load_claim(self, claim: Claim) -> tuple[Any, str]:
        try:
            thing = claim.load()
            self._check_thing(thing)
        except (Exception, SystemExit) as error:
            return None, f"the plug-in {claim.owner} cannot be loaded: {_words(error)}"
        return thing, ""

    def _check_thing(self, thing: Any) -> None:
        """Refuse what would break the catalogue of all others."""
        if not self._fits(thing):
            raise TypeError(f"{thing!r} is not {self._wanted}")
        list_parameters(_code(thing))


def list_modules() -> list[str]:
    """The modules that the variable names."""
    return [name.strip() for name in os.environ.get(VARIABLE, "").split(",") if name.strip()]


def plugin_environment() -> dict[str, str]:
    """What the environment of this run's other processes needs, so that they find the same plug-ins."""
    return {VARIABLE: ",".join(list_modules())} if list_modules() else {}


def list_plugin_versions() -> dict[str, str]:
    """The plug-ins' packages and modules with their versions; "" for a module that has none."""
    named = {p.dist.name: p.dist.version for p in _index.load_plugins() if p.dist is not None}
    imported = {name: sys.modules[name] for name in list_modules() if name in sys.modules}
    return named | {name: str(getattr(each, "__version__", "")) for name, each in imported.items()}


def _describe_point(point: metadata.EntryPoint) -> tuple[str, str]:
    source = f"{point.dist.name} {point.dist.version}" if point.dist is not None else ""
    return f"{point.value} of {source or 'an unknown package'}", source


def _code(thing: Any) -> Any:
    """The function or class; data sets and partitions are registered with a summary beside it."""
    return thing[0] if isinstance(thing, tuple) else thing


def _module(thing: Any) -> str:
    return str(getattr(_code(thing), "__module__", ""))


def _words(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
