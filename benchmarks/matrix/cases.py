"""The cases of the support matrix."""

from dataclasses import dataclass

NEWEST_TESTED_TORCH, OLDEST_TORCH = "2.13.0", "2.6.0"
PYTHONS = ("3.11", "3.12", "3.13")

LOG = "examples/run.csv"
FINISHED_RUN = "tests/old_runs/0.1-last"  # `ship` would wait for the end of a run that has none
PURE_TESTS = (
    *("tests/core", "tests/journal", "tests/readers", "tests/cli/test_commands.py"),
    "--ignore=tests/journal/test_kill.py",  # about the disk and the clock: the same on all versions
)
LIVE_TESTS = (
    *("-W", "ignore:Guards may run slower on Python 3.13.0"),  # torch.compile warns of it
    "tests/live/test_guard.py",
    "tests/live/test_observe.py",
    "tests/live/test_gradients.py",
    "tests/live/test_host_reads.py",
    "tests/live/test_checkpoints.py",
    "tests/live/test_ranks.py",
    "tests/live/protect/test_bits.py",
    "tests/live/protect/test_discard.py",
    "tests/live/protect/test_ranks.py",
    "tests/live/recover/test_undo.py",
    "tests/state/test_resume.py",
)

OLD_TORCH = (
    *("-k", "not fsdp2 and not hsdp"),
    *("-W", "ignore:TypedStorage is deprecated"),
    *("-W", "ignore:The epoch parameter in `scheduler.step"),
)
"""The oldest torch cannot shard on CPU; its checkpoints and SequentialLR warn of themselves."""


@dataclass(frozen=True, slots=True)
class Call:
    """A command, and the exit codes that are right."""

    command: str
    codes: tuple[int, ...] = (0,)


DIAGNOSE = Call(f"trimtab diagnose {LOG} --json", (1,))
WRITE_TABLE = Call(
    'python -c "import pyarrow as a, pyarrow.parquet as p; '
    "p.write_table(a.table({'input_ids': [[1, 2, 3], [4, 5]]}), 'tokens.parquet')\""
)
WRITE_YAML = Call(
    "python -c \"open('axolotl.yaml', 'w').write('base_model: m\\nlearning_rate: 0.5\\n')\""
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One environment: what goes in, and what is tried."""

    name: str
    python: str = "3.11"
    extra: str | None = None
    torch: str | None = None
    pins: tuple[str, ...] = ()
    """Exact versions of dependencies."""
    imports: tuple[str, ...] = ()
    calls: tuple[Call, ...] = ()
    tests: tuple[str, ...] = ()
    """Test files, and arguments of pytest; the tools that they need are added."""
    tools: tuple[str, ...] = ()
    """Further packages that the tests need and the extra does not bring."""
    is_core_alone: bool = False
    """Whether nothing but the core dependencies may be installed."""


def _extra(extra: str, imports: str, *calls: Call, **others: object) -> Case:
    fields: dict[str, object] = {"name": f"extra {extra}", "extra": extra, "calls": calls} | others
    return Case(imports=tuple(imports.split()), **fields)  # type: ignore[arg-type]


CORE = tuple(
    Case(
        name=f"core, Python {version}",
        python=version,
        imports=("trimtab",),
        calls=(Call("trimtab --version"), DIAGNOSE),
        is_core_alone=True,
    )
    for version in PYTHONS
)

PURE = (
    *(
        Case(
            name=f"tests without torch, Python {version}",
            python=version,
            tests=PURE_TESTS,
        )
        for version in PYTHONS
    ),
    Case(
        name="oldest dependencies",
        # This Typer imports what Click 8.3 warns about; Click 8.1 mixes the outputs in tests.
        pins=("numpy==1.26.0", "rich==13.7.0", "typer==0.16.0", "click==8.2.1"),
        # It also prints a default of None for each option, so that help is longer than a screen.
        tests=(*PURE_TESTS, "-k", "not help_fits_a_screen"),
    ),
)

EXTRAS = (
    _extra("yaml", "yaml", WRITE_YAML, Call("trimtab check axolotl.yaml --json", (0, 1))),
    _extra(
        "corpus",
        "pyarrow tokenizers trimtab.corpus",
        WRITE_TABLE,
        Call("trimtab corpus scan tokens.parquet --out stats"),
    ),
    _extra("wandb", "wandb", Call(f"trimtab observe {FINISHED_RUN} --to wandb")),
    _extra(
        "apprise",
        "apprise",
        Call(f"python benchmarks/matrix/receive_alerts.py {FINISHED_RUN}"),
    ),
    _extra("torch", "torch", Call("python examples/plain_loop.py"), torch=NEWEST_TESTED_TORCH),
    _extra(
        "lab",
        "torch tokenizers trimtab.lab.demo",
        Call("trimtab lab list"),
        Call("trimtab demo"),
        torch=NEWEST_TESTED_TORCH,
    ),
    _extra(
        "hf",
        "transformers trimtab.integrations.hf",
        torch=NEWEST_TESTED_TORCH,
        tests=("tests/integrations/hf/test_callback.py",),
    ),
    _extra(
        "accelerate",
        "accelerate trimtab.integrations.accelerate",
        torch=NEWEST_TESTED_TORCH,
        tests=("tests/integrations/test_accelerate.py",),
        tools=("transformers",),
    ),
    _extra(
        "lightning",
        "lightning trimtab.integrations.lightning",
        torch=NEWEST_TESTED_TORCH,
        tests=("tests/integrations/lightning/test_callback.py",),
    ),
    _extra(
        "torchtitan",
        "torchtitan",  # to import our module takes triton, which the tests replace by a stub
        torch=NEWEST_TESTED_TORCH,
        tests=("tests/integrations/torchtitan",),
    ),
)

TORCHES = tuple(
    Case(
        name=f"live tests, torch {torch}, Python {python}",
        python=python,
        extra="lab",  # some tests train with the model of the lab
        torch=torch,
        imports=("torch",),
        tests=LIVE_TESTS + (OLD_TORCH if torch == OLDEST_TORCH else ()),
    )
    for torch, python in (
        (NEWEST_TESTED_TORCH, "3.11"),
        (OLDEST_TORCH, "3.11"),
        (NEWEST_TESTED_TORCH, "3.13"),
        (NEWEST_TESTED_TORCH, "3.12"),
        ("2.15.0", "3.11"),
    )
)

CASES = (*CORE, *PURE, *EXTRAS, *TORCHES)
