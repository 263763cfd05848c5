"""Imports follow the flow of data, held by the syntax tree of every file; what no file may do is held the same way.

Imports inside functions and under `TYPE_CHECKING` count like any other: they, too, say what a file depends on.
"""

from __future__ import annotations

import ast
import tomllib
from collections.abc import Callable, Iterator
from functools import cache, wraps
from pathlib import Path

import pytest

from fdaudit.tasks import TASKS

from .levels import FACADES, FROM_TRANSCRIPT_REPORTS_MAY, MOST_MODULES, ORDER, ROOMS, STANDALONE, may

ROOT = Path(__file__).parents[1]
PACKAGE_DIR: dict[str, str] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"][
    "package-dir"
]

# -- reading the tree -------------------------------------------------------------------------------------------


@cache
def modules() -> dict[str, Path]:
    """Every module of the project by its dotted name."""
    found = {}
    for package, folder in PACKAGE_DIR.items():
        for path in (ROOT / folder).rglob("*.py"):
            below = path.relative_to(ROOT / folder).with_suffix("").parts
            found[".".join((package, *below)).removesuffix(".__init__")] = path
    return found


@cache
def tree_of(module: str) -> ast.Module:
    return ast.parse(modules()[module].read_text(encoding="utf-8"))


def unit_of(module: str) -> str:
    """`fdaudit.attacks.dlg` -> `attacks`; a module of the root is a unit of its own."""
    return module.removeprefix("fdaudit.") if module in FACADES else module.split(".")[1]


@cache
def imported(module: str) -> tuple[tuple[str, str | None, int], ...]:
    return tuple(_imported(module))


def _imported(module: str) -> Iterator[tuple[str, str | None, int]]:
    """What a module imports: dotted module, name taken from it, line; imports in functions too."""
    is_package = modules()[module].name == "__init__.py"
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, None, node.lineno
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = module.split(".")
                parts = parts[: len(parts) - node.level + is_package]
                base = ".".join([*parts, base] if base else parts)
            for alias in node.names:
                inner = f"{base}.{alias.name}"
                yield (inner, None, node.lineno) if inner in modules() else (base, alias.name, node.lineno)


def ours(module: str) -> Iterator[tuple[str, str | None, int]]:
    for target, name, line in imported(module):
        if target == "fdaudit" or target.startswith("fdaudit."):
            yield target, name, line


ALL = sorted(modules())

TRUTH = ORDER[ORDER.index("isolation") :]
"""Units that hold the truth or can reach it."""

# -- the rules --------------------------------------------------------------------------------------------------

Rule = Callable[[str], None]
RULES: list[Rule] = []
"""Each takes a module and asserts; one test a rule, since one for each module as well takes pytest half a minute."""


def rule(*rooms: str) -> Callable[[Rule], Rule]:
    """A rule for modules of some rooms, or for all."""

    def kept(check: Rule) -> Rule:
        @wraps(check)
        def where_it_holds(module: str) -> None:
            if not rooms or unit_of(module) in rooms:
                check(module)

        RULES.append(where_it_holds)
        return where_it_holds

    return kept


def test_units_and_files_are_in_order_without_circles() -> None:
    assert {unit_of(m) for m in ALL} == set(ORDER)
    assert len(ORDER) == len(set(ORDER))
    after = {m: {t for t, _, _ in ours(m) if t in modules() and t != m} for m in ALL}
    while free := [m for m, targets in after.items() if not targets & after.keys()]:
        for module in free:
            del after[module]
    assert after == {}, "each of these imports another of them, directly or through others"
    for module in STANDALONE:
        assert list(ours(f"fdaudit.{module}")) == []
    (load,) = [call for name, call in calls("fdaudit.metrics.images.weights") if name == "torch.load"]
    assert {k.arg: ast.literal_eval(k.value) for k in load.keywords}["weights_only"] is True


def test_no_package_holds_more_modules_than_a_reader_oversees() -> None:
    held: dict[str, list[str]] = {}
    for module, path in modules().items():
        if path.name != "__init__.py":
            held.setdefault(module.rpartition(".")[0], []).append(module)
    ours_to_order = {k: v for k, v in held.items() if unit_of(k) not in ROOMS}
    assert {k: len(v) for k, v in ours_to_order.items() if len(v) > MOST_MODULES} == {}


def test_the_tree_is_read(tmp_path: Path) -> None:
    """The reader sees every form of import; were it blind, every rule below would hold."""
    seen = {(target, name) for target, name, _ in ours("fdaudit.planning.simulated")}
    assert ("fdaudit.protocols", None) in seen  # from fdaudit import protocols
    assert ("fdaudit.errors", "SpecError") in seen
    assert ("fdaudit.reports.run.security", "write_report") in {
        (t, n) for t, n, _ in ours("fdaudit.api")
    }  # in a function
    assert ("fdaudit.federation.local_settings", "LocalTraining") in {
        (t, n) for t, n, _ in ours("fdaudit.protocols._fedavg_settings")
    }
    assert ("fdaudit.adversary.view", "View") in {
        (t, n) for t, n, _ in ours("fdaudit.attacks.loss_threshold")
    }  # TYPE_CHECKING
    assert ("fdaudit.attacks.gradient_inversion.labels", "recover_labels") in {
        (t, n) for t, n, _ in ours("fdaudit.attacks.gradient_inversion.dlg")
    }


@rule()
def imports_go_one_way(module: str) -> None:
    allowed = may(unit_of(module))
    wrong = [
        f"line {line}: {t}"
        for t, _, line in ours(module)
        if t not in modules() or not {unit_of(t), t.removeprefix("fdaudit.")} & allowed
    ]
    assert wrong == [], f"{module} may import {sorted(allowed)}"


@rule("reports")
def reports_take_nothing_from_the_transcript_but_its_verification(module: str) -> None:
    taken = {name for target, name, _ in ours(module) if target == "fdaudit.transcript.transcript"}
    assert taken <= FROM_TRANSCRIPT_REPORTS_MAY


@rule("attacks")
def attacks_reach_no_truth(module: str) -> None:
    """Said once more in words: what an attack must never reach, whatever becomes of the table."""
    reached = {t.removeprefix("fdaudit.") for t, _, _ in ours(module) if t in modules()}
    assert not {unit_of(f"fdaudit.{t}") for t in reached} & {
        "data",
        "defenses",
        "metrics",
        "protocols",
        *TRUTH,
    }
    assert not reached & {"storage.vault", "transcript.wire", "transcript.transcript", "transcript.payloads"}


@rule("defenses", "protocols")
def defences_and_protocols_know_neither_each_other_nor_the_vault(module: str) -> None:
    reached = {unit_of(t) for t, _, _ in ours(module) if t in modules()}
    other = {"defenses": "protocols", "protocols": "defenses"}[unit_of(module)]
    assert not reached & {other, "attacks", "metrics", "reports", *TRUTH}
    assert "fdaudit.storage.vault" not in {t for t, _, _ in ours(module)}


@rule()
def rooms_are_imported_by_their_full_name(module: str) -> None:
    """`attacks.x` and `fdaudit.attacks.x` would be two modules with two classes of one name."""
    assert {target.split(".")[0] for target, _, _ in imported(module)}.isdisjoint(ROOMS)


DYNAMIC = {  # files that import by a name held in a variable, each from a closed list or for the user
    "fdaudit",
    "fdaudit.models.declared",
    "fdaudit.models.zoo",
    "fdaudit.registry.registry",
    "fdaudit.reports",
}


def names_of(node: ast.expr) -> str:
    """`torch.random.fork_rng` for the expression that says so; `?` for what is not a name."""
    if isinstance(node, ast.Attribute):
        return f"{names_of(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


@cache
def calls(module: str) -> tuple[tuple[str, ast.Call], ...]:
    return tuple(_calls(module))


def _calls(module: str) -> Iterator[tuple[str, ast.Call]]:
    """Every call by its dotted name, aliases of imports written out."""
    alias = {"np": "numpy", "F": "torch.nn.functional"}
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Import):
            alias |= {a.asname: a.name for a in node.names if a.asname}
        elif isinstance(node, ast.ImportFrom) and not node.level:
            alias |= {a.asname or a.name: f"{node.module}.{a.name}" for a in node.names}
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Call):
            head, _, rest = names_of(node.func).partition(".")
            yield f"{alias.get(head, head)}{'.' if rest else ''}{rest}", node


@rule()
def nothing_hidden_is_imported(module: str) -> None:
    found = {
        name for name, _ in calls(module) if name.endswith(("import_module", "__import__", "exec_module"))
    }
    assert not found or module in DYNAMIC


PARTS_OF_A_RUN = {
    "fdaudit.handout.oracle_server.Answering",
    "fdaudit.scoring.ground_truth.Truth",
    "fdaudit.scoring.scoring.Scorer",
}


@rule()
def only_a_run_directory_opens_the_parts_of_a_run(module: str) -> None:
    opened = PARTS_OF_A_RUN & {name for name, _ in calls(module)}
    assert not opened or module == "fdaudit.scoring.run_directory"


FORBIDDEN_MODULES = {
    "cPickle",
    "cloudpickle",
    "dill",
    "joblib",
    "marshal",
    "pickle",
    "random",
    "shelve",
    "subprocess",
}


EXCEPTIONS = {
    # These start processes: of this Python, with a module of ours, told what to do in JSON.
    "fdaudit.parallel.pool": {"subprocess"},
    "fdaudit.isolation.launch": {"subprocess"},
    # This one forks and seeds the generator that other people's networks may draw from.
    "fdaudit.parallel.randomness": {"random"},
}


@rule()
def no_unpickling_no_shell_no_global_randomness_is_imported(module: str) -> None:
    found = {target.split(".")[0] for target, _, _ in imported(module)} & FORBIDDEN_MODULES
    assert found == EXCEPTIONS.get(module, set())


FORBIDDEN_CALLS = {
    "compile",
    "eval",
    "exec",
    "numpy.random.seed",
    "os.popen",
    "os.system",
    "torch.hub.load",
    "torch.jit.load",
    "torch.load",
    "torch.manual_seed",
    "torch.random.manual_seed",
    "torch.seed",
    "torch.set_rng_state",
    "yaml.full_load",
    "yaml.load",
    "yaml.load_all",
    "yaml.unsafe_load",
}
MARKED = {
    # Weights of a pinned digest, tensors only.
    ("fdaudit.metrics.images.weights", "torch.load"): 1,
}


@rule()
def no_forbidden_call(module: str) -> None:
    found = [name for name, _ in calls(module) if name in FORBIDDEN_CALLS]
    marked = [name for name in found for _ in [0] if (module, name) in MARKED]
    assert found == marked
    for name in set(found):
        assert found.count(name) == MARKED[module, name]


@rule()
def numpy_files_are_read_without_pickle(module: str) -> None:
    for name, call in calls(module):
        if name in ("numpy.load", "numpy.lib.format.read_array"):
            assert {k.arg: ast.literal_eval(k.value) for k in call.keywords}["allow_pickle"] is False


DRAWS = {
    f"torch.{name}"
    for name in ("bernoulli", "multinomial", "normal", "poisson", "rand", "randint", "randn", "randperm")
}
WITHOUT_GENERATOR = {"torch.rand_like", "torch.randn_like", "torch.randint_like"}
NUMPY_RANDOM = {"numpy.random.default_rng", "numpy.random.Generator", "numpy.random.SeedSequence"}
GLOBAL_GENERATOR = "fdaudit.parallel.randomness"
"""Networks can only draw from the global generators: this module seeds them inside a fork, which puts them back."""
GLOBAL_STATES = {"numpy.random.get_state", "numpy.random.set_state"}


@rule()
def every_draw_has_a_generator(module: str) -> None:
    for name, call in calls(module):
        where = f"{module} line {call.lineno}: {name}"
        assert name not in WITHOUT_GENERATOR, where
        if name in DRAWS:
            assert "generator" in {k.arg for k in call.keywords}, where
        if name in GLOBAL_STATES:
            assert module == GLOBAL_GENERATOR, where
        elif name.startswith("numpy.random."):
            assert name in NUMPY_RANDOM, where
            assert call.args, f"{where}: a seed from the operating system"


@rule()
def the_global_generator_is_seeded_inside_a_fork_only(module: str) -> None:
    seeding = [
        node
        for name, node in calls(module)
        if name.startswith(("torch.default_generator.", "torch.cuda."))
        and name.endswith(("manual_seed", "seed_all"))
    ]
    if not seeding:
        return
    assert module == GLOBAL_GENERATOR
    forks = [
        node
        for node in ast.walk(tree_of(module))
        if isinstance(node, ast.With)
        and any(
            names_of(i.context_expr.func) == "forked_randomness"
            for i in node.items
            if isinstance(i.context_expr, ast.Call)
        )
    ]
    inside = {id(below) for fork in forks for below in ast.walk(fork)}
    assert all(id(node) in inside for node in seeding)


@rule()
def no_task_is_told_by_its_name(module: str) -> None:
    """Only `fdaudit.tasks` says what differs between tasks; others ask its objects."""
    if unit_of(module) == "tasks":
        return
    for node in ast.walk(tree_of(module)):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            about_tasks = any("task" in ast.unparse(side) for side in sides)
            named = {text for side in sides for text in texts_of(side)} & TASKS.keys()
            assert not (about_tasks and named), f"line {node.lineno}: ask the task itself, not its name"
        if isinstance(node, ast.Dict):
            named = {text for key in node.keys if key is not None for text in texts_of(key)} & TASKS.keys()
            assert len(named) < 2, f"line {node.lineno}: what differs between tasks belongs to fdaudit.tasks"


def texts_of(expression: ast.expr) -> set[str]:
    """The texts that an expression spells out."""
    constants = [node for node in ast.walk(expression) if isinstance(node, ast.Constant)]
    return {node.value for node in constants if isinstance(node.value, str)}


@pytest.mark.parametrize("check", RULES, ids=lambda check: check.__name__)
def test_every_module_keeps_the_rule(check: Rule) -> None:
    for module in ALL:
        check(module)


def test_the_rules_find_what_they_forbid(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each rule on a file that breaks it."""
    bad = (
        "import pickle\nimport numpy as np\nfrom torch import load\nimport torch as t\n"
        "def f():\n    from fdaudit.storage.vault import Vault\n    from ..defenses import noise\n"
        "load(1); t.load(2); eval('3'); np.random.seed(4); t.rand(5)\n"
        "what = {'text': 1, 'segmentation': 2} if task == 'single-label' else {}\n"
    )
    monkeypatch.setitem(modules(), "fdaudit.attacks.bad", ROOT / "attacks" / "bad.py")
    real = Path.read_text
    monkeypatch.setattr(
        Path, "read_text", lambda self, **k: bad if self.name == "bad.py" else real(self, **k)
    )
    for check in (
        imports_go_one_way,
        attacks_reach_no_truth,
        no_unpickling_no_shell_no_global_randomness_is_imported,
        no_forbidden_call,
        every_draw_has_a_generator,
        no_task_is_told_by_its_name,
    ):
        with pytest.raises(AssertionError):
            check("fdaudit.attacks.bad")
    found = [name for name, _ in calls("fdaudit.attacks.bad")]
    assert found.count("torch.load") == 2
    assert {"eval", "numpy.random.seed", "torch.rand"} <= set(found)
    reached = {target for target, _, _ in ours("fdaudit.attacks.bad")}
    assert reached == {"fdaudit.storage.vault", "fdaudit.defenses.noise"}
