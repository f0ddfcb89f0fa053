"""What `corpus`, `lab`, `demo`, `selftest` and the commands about live runs print with `--json`."""

from typing import Any, NotRequired, TypedDict

from trimtab.journal.approval import Proposal


class FollowedRun(TypedDict):
    """`trimtab follow`: the state of a run; one object per line, when there is news."""

    run: str
    records: int
    step: int | None
    discarded: int
    values: dict[str, float]
    incidents: list[dict[str, Any]]
    proposal: Proposal | None
    ended: str | None


class AddedNote(TypedDict):
    """`trimtab note`: where the note stands."""

    run: str
    step: int
    text: str


class AnsweredProposal(TypedDict):
    """`trimtab approve`, `trimtab decline`: what was answered."""

    run: str
    approved: bool
    proposal: Proposal


class SelftestCheck(TypedDict):
    """One promise, checked."""

    name: str
    outcome: str
    reason: str
    seconds: float


class Selftest(TypedDict):
    """`trimtab selftest`: whether the guard keeps its promises on this machine."""

    device: str
    device_name: str
    torch: str
    trimtab: str
    passed: bool
    checks: list[SelftestCheck]


class ProposedExperiment(TypedDict):
    """The experiment that would separate the first two causes best."""

    experiment: str
    reason: str


class PlannedReplay(TypedDict):
    """`trimtab probe`: what is known by experiment, the next one, and the replay."""

    run: str
    incident: int
    step: int
    last_step: int
    answers: dict[str, str]
    proposal: ProposedExperiment | None
    checkpoint: str | None
    first_step: int
    first_position: int
    last_position: int


class Shipped(TypedDict):
    """What one sink has received."""

    sink: str
    records: int
    refused: int
    link: str | None


class ShippedRun(TypedDict):
    """`trimtab ship`: what every sink has received so far."""

    run: str
    complete: bool
    sinks: list[Shipped]


class CorpusPlace(TypedDict):
    """A place in a corpus, and what is there."""

    place: str
    period: NotRequired[int]
    tokens: NotRequired[int]
    what: NotRequired[str]
    length: NotRequired[int]
    count: NotRequired[int]


class RareTokens(TypedDict):
    """The tokens that occur least."""

    below: int
    ids: list[int]
    occurrences: int


class DuplicateDocuments(TypedDict):
    """Documents that occurred before."""

    documents: int
    tokens: int
    kept_share: float
    most_repeated: list[CorpusPlace]


class CorpusNumbers(TypedDict):
    """Counts of a source, or of all together."""

    tokens: int
    out_of_range: int
    repeated_tokens: int
    repeated_runs: int
    documents: int
    empty_documents: int
    long_documents: int
    damaged_documents: int
    unreadable_rows: int


class CorpusSource(CorpusNumbers):
    """One source of a corpus."""

    distinct: int
    rare_occurrences: int


class ScannedCorpus(CorpusNumbers):
    """`trimtab corpus scan`, `merge` and `show`: what a scan found."""

    files: int
    bytes: int
    vocab_size: int | None
    rare: RareTokens
    never: list[int]
    sources: dict[str, CorpusSource]
    duplicates: DuplicateDocuments
    repeats: list[CorpusPlace]
    longest: list[CorpusPlace]
    long_from: int
    damaged: list[CorpusPlace]
    lengths: list[int]
    counts_only: bool
    damaged_tokens: NotRequired[dict[str, Any]]


class ScannedShard(TypedDict):
    """`trimtab corpus scan --shard`: one shard."""

    shard: int
    shards: int
    scanned_now: bool


class LabKind(TypedDict):
    """A fault, natural instability or hard negative."""

    name: str
    title: str
    strengths: str
    lasts: str
    base: str


class LabKinds(TypedDict):
    """`trimtab lab list`: what the lab can do to a run."""

    faults: list[LabKind]
    natural: list[LabKind]
    hard_negatives: list[LabKind]


class LabRun(TypedDict):
    """`trimtab lab run`, `trimtab lab show`: a run, and what was done to it."""

    run: str
    truth: dict[str, Any]


class LabSuite(TypedDict):
    """`trimtab lab suite`: the runs of a suite."""

    folder: str
    runs: int
    trained: int
    bytes: int


class TrainedRun(TypedDict):
    """`trimtab lab train`: how a run ended."""

    run: str
    steps: int
    first_step: int
    held_out_loss: float


class DemoOutcome(TypedDict):
    """One of the two runs of the demo."""

    folder: str
    final_loss: float
    steps_repeated: int
    discarded: int


class Demo(TypedDict):
    """`trimtab demo`: the run alone and the run that recovers."""

    steps: int
    faults: dict[str, int]
    watched: DemoOutcome
    recovered: DemoOutcome
