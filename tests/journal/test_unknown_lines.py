"""Lines with good checksums and any content, as a later trimtab or a stranger may write them."""

import tempfile
from pathlib import Path

from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.kit.cases import examples

from trimtab.journal import Follower, RunDirectory, read_journal
from trimtab.journal.files import JournalFiles
from trimtab.journal.lines import _FIELDS, Entry, encode_line
from trimtab.journal.writer import seal_leftover

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner),
    max_leaves=5,
)
small = st.integers(-2, 5)
likely = {
    "kind": st.sampled_from([*_FIELDS, "record", "sealed", "future"]),
    "tick": small, "step": small, "attempt": small, "position": small, "note": small,
    "schema": small, "index": small, "first_tick": small, "count": small, "notes": small,
    "event": st.text(max_size=3), "how": st.text(max_size=3),
    "signal": st.text(max_size=3), "quality": st.sampled_from(["raw", "smoothed", "superb"]),
    "facts": st.dictionaries(st.text(max_size=3), anything, max_size=2),
    "qualities": st.dictionaries(st.text(max_size=3), st.sampled_from(["raw", "x"]), max_size=2),
    "signals": st.dictionaries(st.text(max_size=3), st.floats() | anything, max_size=3),
    "damage": st.fixed_dictionaries({}, optional={"kind": st.just("repeated"), "file": st.text()}),
    "line": st.dictionaries(st.text(max_size=3), anything, max_size=2),
}  # fmt: skip
whole = st.fixed_dictionaries(likely)
broken = st.fixed_dictionaries({}, optional={key: kind | anything for key, kind in likely.items()})


@given(entries=st.lists(whole | broken, max_size=12))
@example(entries=[{"kind": "record", "step": 0, "tick": 2**63 - 1, "signals": {}}])
@settings(max_examples=examples(100), deadline=None)
def test_no_line_makes_reading_crash_or_sealing_forget(entries: list[Entry]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = RunDirectory(Path(folder))
        files = JournalFiles(run.journal)
        run.journal.mkdir(parents=True)
        files.log(0).write_bytes(b"".join(encode_line(entry) for entry in entries))
        before = read_journal(run)
        with Follower(run) as follower:
            assert len(follower.poll()) == len(before.block)
        seal_leftover(files, 0)
        assert not files.log(0).exists()
        after = read_journal(run)
        assert sorted(map(str, after.block.events)) == sorted(map(str, before.block.events))
        assert after.block.tick.tolist() == before.block.tick.tolist()
        assert after.block.qualities == before.block.qualities
        assert (after.dropped, after.schema) == (before.dropped, before.schema)
        kinds = {damage.kind for damage in before.damage}
        assert kinds == {damage.kind for damage in after.damage}
