"""Post-mortems read by rule: `scripts/bench documents [--publish]`.

Writes the post-mortem of every incident of the stories, the playbook's drawn curves and the files
of strangers, and counts what contradicts itself in them, by the rules of `tests/kit/reader.py`.
"""

import argparse
import contextlib
from collections.abc import Iterator
from typing import Any

from tests.kit.public_runs import DATA
from tests.kit.reader import Document, contradictions_in, repeated_sentences

from benchmarks.causes.stories import read_stories, story_report
from benchmarks.judge.drawn import bad_starts, playbook
from benchmarks.results import publish
from benchmarks.strangers import FILES as STRANGERS
from trimtab import diagnose
from trimtab.core.block import Block
from trimtab.core.errors import LogError
from trimtab.report.postmortem import write_postmortem
from trimtab.report.run_report import RunReport


def main() -> None:
    """Read all documents and print what contradicts itself."""
    parser = argparse.ArgumentParser(prog="scripts/bench documents", description=__doc__)
    parser.add_argument("--publish", action="store_true")
    chosen = parser.parse_args()
    documents: dict[str, Document] = {}
    for source, report in _reports():
        documents |= {f"{source} {name}": one for name, one in documents_of(report).items()}
    found = [
        f"{name}: {said}" for name, one in documents.items() for said in contradictions_in(one)
    ]
    found += repeated_sentences(documents)
    print("\n".join(found))
    print(f"{len(found)} contradictions in {len(documents)} documents")
    if chosen.publish:
        headline = ("post-mortems: contradictions, by rule", f"{len(found)} in {len(documents)}", 0)
        publish("Post-mortems: read by rule", "scripts/bench documents", "", [headline])


def documents_of(report: RunReport) -> dict[str, Document]:
    """Return the post-mortems of a run, by the number of their incident."""
    return {
        str(one.incident.number): Document(
            text=write_postmortem(one, report),
            last_step=int(report.block.step.max()),
            signals=frozenset(report.block.columns),
        )
        for one in report.incidents
    }


def _reports() -> Iterator[tuple[str, RunReport]]:
    for number, drawn in enumerate((*playbook(), *bad_starts())):
        yield f"drawn {number}, {drawn.kind},", diagnose(_columns(drawn.block))
    folder = DATA / "stories"
    for story in read_stories(folder, sparse=True):
        with contextlib.suppress(LogError):
            yield f"story {story['id']}", story_report(folder, story)
    for path in sorted((STRANGERS / "raw").iterdir()):
        with contextlib.suppress(LogError):
            yield f"stranger {path.name}", diagnose(path)


def _columns(block: Block) -> dict[str, Any]:
    values = {name: column.values for name, column in block.columns.items()}
    return {"step": block.step, **values}


if __name__ == "__main__":
    main()
