"""remedy: what the run is about to do against an incident, tried on a state that is thrown away.

Only batches that the run has had already are used: a batch that was fetched for an experiment would
have drawn random numbers that the run did not draw. So of steps that are skipped, those before them
are tried: they show whether the run goes back far enough.

Answers:
    "gone"       no step is odd with the remedy
    "not gone"   some are
"""

import math

from trimtab.probes.batch_or_state import NOTHING_TO_COMPARE, Scale
from trimtab.probes.passes import Answer, Experiment, Pass, Question, open_answer


def remedy(question: Question) -> Experiment:
    """Do the steps of the incident again, with the remedy."""
    tried, scale = question.remedy, Scale.of(question)
    if tried is None:
        return open_answer(question, "no remedy was decided upon")
    if scale is None:
        return open_answer(question, NOTHING_TO_COMPARE)
    last = question.present - 1 - math.ceil(len(tried.skip) / question.accumulate)
    last = min(last, tried.target + question.max_steps - 1)
    if last < tried.target:
        return open_answer(question, "all steps since the snapshot are skipped")
    result = yield Pass(
        first=tried.target,
        last=last,
        skip=tried.skip,
        hold=tried.hold,
        lr_factor=tried.lr_factor,
    )
    before = [one for one in question.originals if question.step <= one.step < question.present]
    odd_before = sum(map(scale.is_odd, before))
    odd = [one.step for one in result.steps if scale.is_odd(one)]
    return Answer(
        experiment=question.experiment,
        says="not gone" if odd else "gone",
        sentence=f"{tried.name} from step {tried.target}: {len(odd)} of {len(result.steps)} steps "
        f"are odd when they are done again with it; without it {odd_before} of {len(before)} were",
        facts={"odd": odd, "steps": len(result.steps), "odd_without": odd_before},
    )
