"""Refusals expire, and each is said: one never switches a proof off for the rest of a run."""

from trimtab.live.recover.rules import (
    FREQUENT_EDIT_UPDATES,
    MAX_UNDOS,
    PER_UPDATES,
    RETURN_STEPS,
    Edits,
    PastUndo,
    Proof,
    StateFindings,
    UndoHistory,
)


def history(*updates: int, proof: Proof = Proof.FLIPPED) -> UndoHistory:
    return UndoHistory([PastUndo(proof=proof, update=update) for update in updates])


def test_at_most_three_undos_in_a_thousand_updates() -> None:
    past = history(100, 140, 180)
    assert MAX_UNDOS == 3
    assert "3 undos in the last 1000 updates" in str(past.why_not(Proof.FLIPPED, 220))
    assert past.why_not(Proof.FLIPPED, 100 + PER_UPDATES) is None


def test_a_refusal_stands_for_a_hundred_updates() -> None:
    past = history()
    past.refusals[Proof.IMPOSSIBLE] = 50
    assert past.is_refused(Proof.IMPOSSIBLE, 50 + RETURN_STEPS)
    assert not past.is_refused(Proof.IMPOSSIBLE, 51 + RETURN_STEPS)
    assert not past.is_refused(Proof.NONFINITE, 51)
    past.refusals[Proof.FLIPPED] = 50
    assert not past.is_refused(Proof.FLIPPED, 51)  # the next flip is another one


def test_what_stands_still_again_has_a_cause() -> None:
    past = history(100, proof=Proof.TOO_FAR)
    assert "it has a cause" in str(past.why_not(Proof.STUCK, 120))
    assert past.why_not(Proof.IMPOSSIBLE, 120) is None
    assert past.why_not(Proof.STUCK, 101 + RETURN_STEPS) is None
    assert "another copy of the weights" in str(past.why_not(Proof.STUCK, 120, [Edits(110)]))
    assert past.why_not(Proof.ORDERED, 101) is None


def test_a_row_of_edits_has_a_beginning() -> None:
    edits = Edits()
    for update in (10, 11, 12):
        edits = edits.add(update)
    assert (edits.first, edits.last, edits.is_frequent) == (10, 12, True)
    later = edits.add(12 + FREQUENT_EDIT_UPDATES)
    assert (later.first, later.is_frequent) == (later.last, False)


def test_what_is_not_finite_is_proof_only_where_training_does_not_go_on() -> None:
    found = StateFindings(nonfinite=1, too_far=1, broken_tensor=3, audited=1)
    assert found.proof(is_finite=True, world=1) is None
    assert found.proof(is_finite=False, world=1) is Proof.NONFINITE
    assert not found.is_sound


def test_a_flip_on_every_rank_is_code() -> None:
    for ranks, world, is_proof in ((1, 1, True), (1, 2, True), (2, 2, False), (7, 8, True)):
        found = StateFindings(flipped=ranks, flipped_ranks=ranks)
        assert (found.proof(is_finite=True, world=world) is Proof.FLIPPED) == is_proof
