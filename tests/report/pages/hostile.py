"""Text that tries to run in a page: in names, notes, tokens, metrics and paths."""

import dataclasses
import math
from pathlib import Path

import numpy as np
from tests.kit.synthetic import troubled_run
from tests.report.test_reports import report_of

from trimtab.core.block import Column, Event
from trimtab.core.run import RunFacts
from trimtab.journal.batches.batch_report import BatchReport, RowReport
from trimtab.journal.batches.tokens import TokenShare
from trimtab.report.run_report import RunReport

PAYLOADS = (
    "<script>alert(1)</script>",
    "</script><script>alert(2)</script>",
    "<!--<script>alert(3)//-->",
    "<img src=x onerror=alert(4)>",
    "<img src=//evil.example/x.png>",
    "<svg onload=alert(5)>",
    "<svg><script>alert(6)</script></svg>",
    "<iframe src=javascript:alert(7)></iframe>",
    "<iframe srcdoc='<script>alert(8)</script>'>",
    "<body onload=alert(9)>",
    "<link rel=stylesheet href=//evil.example/x.css>",
    "<style>@import '//evil.example/y.css';</style>",
    "<style>body{display:none}</style>",
    "<base href=//evil.example/>",
    "<meta http-equiv=refresh content='0;url=//evil.example'>",
    "<form action=//evil.example><button>x</button></form>",
    "<a href=javascript:alert(10)>x</a>",
    "javascript:alert(11)",
    "JaVaScRiPt:alert(12)",
    "data:text/html,<script>alert(13)</script>",
    '" onmouseover="alert(14)',
    "' onfocus='alert(15)' autofocus='",
    "` onclick=alert(16) `",
    '"><script>alert(17)</script>',
    "'><img src=x onerror=alert(18)>",
    "</title><script>alert(19)</script>",
    "</style><script>alert(20)</script>",
    "</textarea><script>alert(21)</script>",
    "</svg><script>alert(22)</script>",
    "</td></tr></table><script>alert(23)</script>",
    "<details open ontoggle=alert(24)>",
    "<video><source onerror=alert(25)>",
    "<object data=//evil.example/o></object>",
    "<embed src=//evil.example/e>",
    "<math><mtext><script>alert(26)</script></mtext></math>",
    "${alert(27)}",
    "{{constructor.constructor('alert(28)')()}}",
    "\\u003cscript\\u003ealert(29)\\u003c/script\\u003e",
    "&lt;script&gt;alert(30)&lt;/script&gt;",
    "&#60;script&#62;alert(31)&#60;/script&#62;",
    "%3Cscript%3Ealert(32)%3C/script%3E",
    "]]><script>alert(33)</script>",
    "line\u2028separator\u2029<script>alert(34)</script>",
    "null\x00byte<script>alert(35)</script>",
    "\x1b]0;title\x07<script>alert(36)</script>",
    "[x](javascript:alert(37))",
    "![x](//evil.example/z.png)",
    "**<script>alert(38)</script>**",
    "`<script>alert(39)</script>`",
    "| a | b | <script>alert(40)</script> |",
    "# <script>alert(41)</script>",
    "__proto__",
    "constructor",
    "../../../../etc/passwd",
    "\ud800\udfff lone \udc80 surrogate",
)


def hostile_report() -> RunReport:
    """A run in which every text that a log can hold is hostile."""
    block = troubled_run()
    names = [f"param_norm/{payload}" for payload in PAYLOADS[:3]]
    names += [f"activation_rms/{payload}" for payload in PAYLOADS]
    names += list(PAYLOADS)
    values = np.linspace(1.0, 2.0, len(block))
    columns = dict(block.columns) | {name: Column.complete(values) for name in names}
    events = [
        Event(kind="note", tick=10 + n, step=10 + n, facts={"text": payload})
        for n, payload in enumerate(PAYLOADS)
    ]
    events += [
        Event(kind=payload, tick=100 + n, step=100 + n, facts={payload: payload})
        for n, payload in enumerate(PAYLOADS)
    ]
    events += [
        Event(kind="decision", tick=600 + n, step=600 + n, facts={"act": p, "reason": p})
        for n, p in enumerate(PAYLOADS[:19])
    ]
    block = dataclasses.replace(block, columns=columns, events=tuple(events))
    everything = " ".join(PAYLOADS)
    report = report_of(
        block,
        source=str(Path("runs") / everything),
        facts=RunFacts(dtype=PAYLOADS[0], seed=7, ranks=2, link="javascript:alert(50)"),
        notes=PAYLOADS,
    )
    batch = _batch(everything)
    incidents = tuple(dataclasses.replace(found, batch=batch) for found in report.incidents)
    return dataclasses.replace(report, incidents=incidents, packages={"spike": everything})


def _batch(text: str) -> BatchReport:
    tokens = tuple(
        TokenShare(id=n, count=3, share=0.1, run_share=0.001, g2=200.0, text=payload)
        for n, payload in enumerate(PAYLOADS)
    )
    row = RowReport(
        data_position=600,
        row=0,
        reasons=(PAYLOADS[0],),
        rarity=7.0,
        repetition=0.9,
        loss=math.nan,
        max_token_loss=None,
        max_loss_place=None,
        num_tokens=64,
        token_ids=(1, 2, 3),
        text=text,
    )
    return BatchReport(
        onset_tick=599,
        num_batches=64,
        num_run_tokens=1000,
        tick=599,
        step=600,
        data_position=600,
        num_rows=8,
        num_unusual_rows=1,
        unusual_positions=(600,),
        usual={"rarity": 5.0},
        rows=(row,),
        tokens=tokens,
    )
