"""One line of a log: its numbers, and what each of them is called.

A line is cut at its numbers. What lies between them, the layout, is the same for all lines that one
print statement wrote, so it is understood once: `name_numbers` says what each number is called,
whatever the convention (`k: v`, `k=v`, `k v`, `| k | v |`, dicts, JSON, progress bars).
"""

import re
import tomllib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.resources import files

from trimtab.readers.cells import parse_number

LINE_CHARS = 1 << 16
"""A longer line is no record; it is left out."""

NAME_CHARS = 99
"""A longer text before a number is a sentence, not its name."""

BAR = "progress bar"
"""The name of the counter of a progress bar."""

FRACTION = "n/N"
"""The name of a counter that has a total and no name."""

INDEX = "line index"
"""The name of a number that begins the line, as in `[10] loss: 2.5`."""

EPOCH = "epoch"
"""The name of a nameless counter before a faster one: `[1, 2000]`, `[1/25][20/100]`."""

TOTAL = " (total)"
"""What the name of a counter's total ends with."""

COLUMN = "column "
"""How a number of a line without any name is called: by its place, from 1."""

_ANSI = re.compile(
    r"\x1b(?:\[[0-?]*+[ -/]*+[@-~]|\][^\x07\x1b]*+(?:\x07|\x1b\\)?|[@-Z\\^_])"
    r"|[\x00-\x08\x0b-\x1f\x7f]"
)

WORDS = tomllib.loads(
    files("trimtab.readers.general").joinpath("words.toml").read_text(encoding="utf-8")
)
_DRAWN = str.maketrans({mark: to for to, marks in WORDS["drawn"].items() for mark in marks})

# Optional groups are atomic, `(?>(?:...)?)`: before 3.11.4 Python keeps what a possessive one,
# `(?:...)?+`, has read before it fails.
_DATE = (
    r"\d{4}([-/:.])\d\d\2\d\d(?>(?:[ T_,:-]{0,3}\d\d:\d\d(?>(?::\d\d)?)(?>(?:[.,:]\d{1,9})?)"
    r"(?>(?:Z|[+-]\d\d:?\d\d)?))?)"
)
_SHORT_DATE = r"\d{1,2}/\d{1,2}(?:/\d{2,4})?[ ,T]{1,2}\d\d:\d\d(?>(?::\d\d)?)(?>(?:[.,]\d{1,9})?)"
_CLOCK = r"(?>(?:\d++ days?, )?)\d{1,4}:\d\d(?>(?::\d\d)?)(?>(?:[.,]\d{1,9})?)(?![\d:])"
_GROUPED = r"\d{1,3}+(?>(?:,\d{3}){1,6})(?!,?\d)(?>(?:\.\d++)?)"
_PLAIN = r"(?:\d++(?:\.(?!#)(?:\d++(?:f-?\d++|[dD][-+]\d\d)?)?)?|\.\d++)(?:[eE][-+]?\d++)?"
_WORDS = (
    r"(?:(?:[nN]a[nN]|[iI]nf)(?>(?:16|32)?)|NAN|[iI]nfinity|INF)(?!\w)(?! iterations)"
    r"|1\.#(?:INF|IND|[QS]NAN)\d*+"
)

# A number is no part of a word (fp16, Acc@1, a#3), a path, a version or a hexadecimal address;
# after a hyphen it is one only if it counts something (epoch-3, but not GPT-2).
_START = (
    r"(?:(?<![A-Za-z0-9_.@#$\\])|(?<=[ :\[(]#)(?=\d)|(?<=^#)(?=\d)"
    r"|(?<=loss)(?=\d++\.\d)|(?<=Loss)(?=\d++\.\d))"
    r"(?:(?<![A-Za-z]-)|(?<=step-)|(?<=Step-)|(?<=iter-)|(?<=poch-)|(?<=atch-))"
)
_END = r"(?![A-Za-z_]++\d)(?!\.[\d#])"

# In a line without decimal points, or right after its name, 2,31 has a decimal comma; three digits
# after it may be thousands. [0,1] is a list.
_COMMA = r"[-+]?\d{1,9}+,(?:\d{1,2}|\d{4,9})(?>(?:[eE][-+]?\d{1,3})?)(?![\d.]|,\d)"
_NUMBER = rf"[-+]?(?:{_GROUPED}|(?>{_PLAIN}){_END}|{_WORDS})"
_TOKENS = [
    # What a number can begin with is asked first: most characters of a line are none of these.
    re.compile(rf"(?=[-+.\dnNiI]){_START}((?:{_DATE}|{_SHORT_DATE}|{_CLOCK}|{number}))")
    for number in (
        _NUMBER,
        rf"(?:(?<=[:=])|(?<=[:=] )){_COMMA}|{_NUMBER}",
        rf"(?<![\[({{<,\d]){_COMMA}|{_NUMBER}",
    )
]
_HAS_COMMA = re.compile(r"\d,\d")
_HAS_POINT = re.compile(r"\d\.\d")

_THOUSANDS = re.compile(r",(?=\d{3}(?!\d))")
_AFTER_MARK = re.compile(r"\.|[eE][-+]?")
_DRAWN_RUN = re.compile(r"##|([=.>*_~-])\1{4}|\t|\s[^\S ]|[^\S ]\s")
_ISO_TIME = re.compile(r"\d{4}-\d\d-\d\d[ T]\d\d:\d\d:\d\d[.,]\d{3,9}")


def clean(line: str) -> str:
    """Return the line without terminal codes, its drawings in ASCII."""
    if "\x1b" in line or not line.isprintable():
        line = _ANSI.sub(lambda code: "\t" if code[0] == "\t" else "", line.replace("\b", ""))
    return line if line.isascii() else line.translate(_DRAWN)


def cut(line: str) -> tuple[tuple[str, ...], list[str]]:
    """Return the texts of a line and the numbers between them, one text more than numbers."""
    has_comma = "," in line and _HAS_COMMA.search(line) is not None
    parts = _TOKENS[has_comma + (has_comma and not _HAS_POINT.search(line))].split(line)
    return tuple(parts[0::3]), parts[1::3]


def is_whole(line: str, before: Sequence[str]) -> bool:
    """Return whether nothing is missing at the end of a last line that has no line end.

    It has no number, closes a dict, or is like a line before it. A number at its very end may be
    half of one unless it has as many digits as there.
    """
    line = clean(line).rstrip()
    texts, tokens = cut(line)
    if not tokens or (line.endswith("}") and line.count("{") == line.count("}")):
        return True
    others = [cut(clean(other).rstrip()) for other in before]
    ends = [found[-1] for other, found in others if normalise(other) == normalise(texts)]
    if texts[-1] or tokens[-1].lstrip("+-").isalpha():
        return bool(ends)
    whole = [_AFTER_MARK.split(end) for end in (tokens[-1], *ends)]
    same = [len(end[-1]) for end in whole if len(end) == len(whole[0])]
    return len(same) > 1 and same[0] == max(same)


def line_pattern(
    texts: Sequence[str], tokens: Sequence[str], places: Sequence[int]
) -> re.Pattern[str] | None:
    """Return a pattern for lines of one layout that catches the numbers at these places.

    It matches only what `cut` cuts into the same layout, in a third of the time: each text is
    matched as it is, blanks in any number where there are several. None if that cannot be said in
    a pattern, as of bars and times of day.
    """
    pattern = ""
    for position, text in enumerate(texts):
        if _DRAWN_RUN.search(text):
            return None
        pattern += "[ ]{2,}+".join(re.escape(part) for part in re.split(" {2,}", text))
        if position < len(tokens):
            if to_number(tokens[position]) is None:
                if not _ISO_TIME.fullmatch(tokens[position]):
                    return None
                pattern += _ISO_TIME.pattern
            else:
                pattern += f"({_NUMBER})" if position in places else f"(?:{_NUMBER})"
    return re.compile(pattern)


def to_number(token: str) -> float | None:
    """Return the number of a token; None for a date or a time of day."""
    try:
        return parse_number(_THOUSANDS.sub("", token).replace(",", ".") if "," in token else token)
    except ValueError:
        return None


# What the numbers are called


@dataclass(frozen=True, slots=True)
class Field:
    """A number of a line that has a name."""

    position: int
    """Which of the line's numbers it is."""
    name: str
    scale: float = 1.0
    """What the number is to be multiplied by: 1.24kit are 1,240 iterations, 1.2B are 1.2e9."""
    unit: str = ""
    """`ms` or `s` if the number is followed by it."""


@dataclass(frozen=True, slots=True)
class Layout:
    """What the lines of one print statement hold."""

    fields: tuple[Field, ...]
    words: frozenset[str]
    """The words before the first numbers that name none of them, in lower case: "test"."""
    is_cut: bool = False
    """Whether a crash cut a record off and the next one goes on in the same line."""


_TEXT_CHARS = 200
"""How much of the text before a number may name it; what is longer is prose."""

_RUNS = re.compile(r"\s{2,}|#{2,}|([=.>*_~-])\1{4,}")

_UNIT = re.compile(
    r"\)? ?(?:%|(?:[munµ]?s|[kMG]?Hz|secs?|seconds?|mins?|hrs?|hours?|[kKMGT]i?[bB]|[kKMGTB]|it|tok"
    r"|tokens|words|samples|imgs|images|examples|[TGP]?FLOP[Ss]?|z)(?:/[A-Za-z]+(?:/[A-Za-z]+)?)?)"
    r"(?![A-Za-z_0-9=:/(])|[A-Za-z%°]+/[A-Za-z]+\b"
)
# What is counted, right between two numbers, is the name of the second: `epoch 0 it 100 loss 2.5`.
_IS_NAME = re.compile(r" (?:it|tokens|samples|images|examples) ")
_FACTOR = re.compile(r"([kKMBT])(?![A-Za-z/])")
_FACTORS = {"K": 1e3, "M": 1e6, "B": 1e9, "T": 1e12}
_SECONDS = re.compile(r" ?(ms|s)(?![A-Za-z/_])")
_LONE_UNIT = re.compile(
    r"\s*(?:ms|s|secs?|seconds|min|it/s|s/it|[A-Za-z]+/s(?:ec)?|(?:m?s|sec)/[A-Za-z]+)\b"
)
_WRAPPER = re.compile(
    r"(?:(?:\w+\.)*(?:b?float|int|[Tt]ensor|[Aa]rray|Decimal|Float)\d*_?\(\[?|[\"'`\[(<])\s*$"
)
_SEPARATOR = re.compile(r"\s*(?:[:=]+>?|->|=>|~)\s*$|\s+(?:is|was|of|at|to|are|about)\s*$|\s+$")
_DELIMITER = re.compile(
    r"[|,;\t{}\]\[()>]|\s-\s|\s:\s|\s{2,}|:\s|\s/\s"
    r"|(?i:(?<!grad)(?<!avg|seq|max|min|val|num|tot|gen))\.\s"
)
_QUOTED = re.compile(r"([\"'`])([^\"'`]{1,99})\1\s*$|(\")([^\"`]{1,99})\"\s*$")
_CALL = re.compile(r"(?<!\S)([A-Za-z_]\w{0,60})\([A-Za-z_]\w*(?:, ?\w+)+\)$")  # loss(x, y) = 2.5
_BRACED = re.compile(r"\{(\w[^{}\"':,]{0,60})\}\s*$")
_BRACE = re.compile(r"[\"']([^\"']{1,99})[\"']\s?[:=]\s?\{|\}")
_LEVELS = frozenset(["info", "debug", "success", "warning", "warn", "error", "notice", "root"])
_FILE = re.compile(r"\.(?:py|cpp|cc|c|cu|h|go|rs|java)(?::\w+)?$")
_FILE_LINE = re.compile(r"\.(?:py|cpp|cc|c|cu|h|go|rs|java):$")
_COUNTED = re.compile(
    r" ?(epochs?|steps?|iters?|iterations?|batch(?:es)?|updates?|[轮步])"
    r"(?![A-Za-z_=/])(?!\s*[:=]?\s*[-+]?[.\d])"
)
_NAMED_AFTER = re.compile(r" ([A-Za-z][A-Za-z_]{0,30}(?: [A-Za-z_]{1,30})?)\s*(?:[,;|)]|$)")
_AT = re.compile(r"(\S.*?)(?: \([^)]*\))? (?:at|after|in|for|@) ([A-Za-z_]+)$")
_NO_TEXT = re.compile(r"[\s,;|]*")
_LETTER = re.compile(r"[^\W\d_]")
_SPARE = re.compile(r"(?<![\w./])[A-Za-z]+(?![\w./])")
_OPENING = re.compile(r"([A-Za-z][\w/ .-]{0,60}?) ?\(([A-Za-z ]{0,20})$")
_CLOSING = re.compile(r"( [A-Za-z]{1,20})?\)( [A-Za-z]{1,20})? ?[:=] ?")
_CELL = re.compile(r"\|\s*([^|]{1,99}?)\s*\|\s*$")
_COUNTING = re.compile(
    r"(?i)(?:epoch|step|iter|iteration|(?:mini)?batch|update|round|episode|run|fold|ep|it|rank|gpu)s?$|^s$"
)
_GOES_ON = re.compile(r" [A-Za-z]{2,20}: ?")
_BARE_WORDS = re.compile(r"\s*(?:[A-Za-z]{2,20} )+")
_TOTALS = {"/": 1.0, "of": 1.0, "out of": 1.0, "it/": 1.0, "kit/": 1e3, "Mit/": 1e6}
"""What stands between a counter and its total, and the unit of the counter."""


def normalise(texts: Sequence[str]) -> tuple[str, ...]:
    """Return the texts with runs of blanks, and bars of any length, cut to one spelling."""
    return tuple(_RUNS.sub(_shorten, text) for text in texts)


def _shorten(run: re.Match[str]) -> str:
    if run[0].isspace():
        return "\t" if "\t" in run[0] else "  "
    return run[0][0] * 5


def understand(texts: Sequence[str], tokens: Sequence[str]) -> Layout:
    """Return what the numbers between these texts, normalised ones, are called."""
    if len(tokens) > 1 and all(_NO_TEXT.fullmatch(text) for text in texts):
        places = [place for place, token in enumerate(tokens) if to_number(token) is not None]
        return Layout(tuple(Field(place, f"{COLUMN}{place + 1}") for place in places), frozenset())
    namer = _Namer(texts, tokens)
    for position in range(len(tokens)):
        namer.add(position)
    fields = sorted([*namer.fields.values(), *namer.totals], key=lambda item: item.position)
    return Layout(tuple(fields), frozenset(namer.words), namer.is_cut)


class _Namer:
    """Names the numbers of a line, one after the other."""

    def __init__(self, texts: Sequence[str], tokens: Sequence[str]) -> None:
        self._texts = texts
        self._tokens = tokens
        self._scope: list[str] = []
        """The names of the JSON objects that are open."""
        self._list = ""
        """The name of the list that is open."""
        self._items = 0
        self.fields: dict[str, Field] = {}
        self.totals: list[Field] = []
        self.words: set[str] = set()
        self.is_cut = False

    def add(self, position: int) -> None:
        """Name the next number."""
        text, following = self._texts[position], self._texts[position + 1]
        if self._begins_again(position):
            text = self._texts[next(iter(self.fields.values())).position]
            self.fields, self.totals, self.is_cut = {}, [], True
        if position:
            unit = _UNIT.match(text)
            if unit and not _IS_NAME.fullmatch(text):
                text = text[unit.end() :]
        for brace in _BRACE.finditer(text):
            self._scope = [*self._scope, brace[1]] if brace[1] else self._scope[:-1]
        text = text[-_TEXT_CHARS:]
        bare = text.strip()
        if to_number(self._tokens[position]) is None or following.startswith(("%|", "% |")):
            self._add_words(spare_words(text))
            return
        if position and bare in _TOTALS:
            self._add_total(position, _TOTALS[bare], is_bar=bare.endswith("it/"))
            return
        before = self._field_at(position - 1)
        if before and bare == "-" and _COUNTING.search(before.name):
            del self.fields[before.name]  # Minibatch[1-10]: the last of them
            self._add(position, before.name)
        elif self._list and bare in ("]:", "]=", "] =", "-"):
            if bare != "-" and not _COUNTING.search(self._list):
                self._add_after_index(position, self._list)
        elif before and bare in (":", "=", "is", "was"):
            self._add_after_counter(position, before)
        elif before and not bare and self._is_count_of(before, self._tokens[position]):
            del self.fields[before.name]  # train loss 100 2.5
            self._add(position - 1, INDEX)
            self._add(position, before.name)
        elif before and bare == "(" and following.lstrip().startswith(")"):
            self._add(position, f"{before.name} (average)")
        elif following.startswith("it ["):
            self._add(position, BAR)
        elif bare in (",", "][", "") and self._enclose(position):
            self._add(position, INDEX)
        elif self._list and bare == ",":
            self._items += 1
            self._add(position, f"{self._list}[{self._items}]")
        else:
            self._add_named(position, text, before)

    def _add_after_index(self, position: int, name: str) -> None:
        """Name a number by the text before brackets: `loss[10]: 2.5`, `avg. loss [51-100]: 2.5`."""
        opening = self.fields[name].position
        if "[" in self._texts[position - 1] and opening < position - 1:
            name = f"{name}[1]"  # loss[0]: 2.5 loss[1]: 2.6
        else:
            del self.fields[name]
            if opening == position - 1 and self._tokens[opening].isdecimal():
                self._add(opening, INDEX)
        self._add(position, name)

    def _add_words(self, words: Iterable[str]) -> None:
        """Add words that say what a line is about: before its first numbers and its loss."""
        if len(self.fields) <= 2 and not any("loss" in name.lower() for name in self.fields):
            self.words.update(words)

    def _add_after_counter(self, position: int, counter: Field) -> None:
        """Name a number by the text before its counter: `training loss at step 10: 2.5`."""
        found = _AT.search(f" {self._texts[position - 1][-_TEXT_CHARS:].rstrip()}")
        del self.fields[counter.name]
        if found:
            self._add(position - 1, found[2])
            name, _ = _name_before(f"{found[1]} ")
            if name:
                self._add(position, name)
        else:
            self._add(counter.position, counter.name, counter.scale)

    def _add_named(self, position: int, text: str, before: Field | None) -> None:
        name, spare = _name_before(text)
        self._add_words(spare)
        whole = self._name_with_number(position, text)
        if whole:
            name = whole
        elif name and before and name.count(")") > name.count("("):
            name = before.name  # the number before is part of the name: Time(100 iters)
            del self.fields[name]
        elif name and before and self._continues(before, text):
            del self.fields[before.name]
            name = f"{before.name} # {name}"  # Style 2 loss: 2.5
        elif name and self._scope and text.rstrip()[-1:] in ":\"'":
            name = "/".join([*self._scope, name])
        name = name or self._name_by_place(position, text.strip())
        self._list, self._items = "", 0
        if name:
            self._add(position, name)
            if text.rstrip().endswith(("[", "(")):
                self._list = name

    def _name_with_number(self, position: int, text: str) -> str | None:
        """Return a name that has a number in brackets in it: `LR (group 0)=0.1`."""
        closing = _CLOSING.fullmatch(text)
        opening = _OPENING.search(self._texts[position - 1]) if position and closing else None
        if not opening or not closing:
            return None
        self.fields = {
            name: item for name, item in self.fields.items() if item.position < position - 1
        }
        inside = f"{opening[2]}{self._tokens[position - 1]}{closing[1] or ''}"
        return f"{opening[1]} ({inside}){closing[2] or ''}"

    def _add(self, position: int, name: str, scale: float = 1.0) -> None:
        if len(name) <= NAME_CHARS and name not in self.fields:
            following = self._texts[position + 1]
            factor, unit = _FACTOR.match(following), _SECONDS.match(following)
            if factor and scale == 1:
                scale = _FACTORS[factor[1].upper()]
            self.fields[name] = Field(position, name, scale, unit[1] if unit else "")

    def _begins_again(self, position: int) -> bool:
        """Return whether a record begins at this number, though one began in the line before."""
        first = next(iter(self.fields.values()), None)
        if first is None or first.position + 1 == position or not _COUNTING.search(first.name):
            return False
        start, text = self._texts[first.position], self._texts[position]
        after = [self._texts[place + 1].split() for place in (first.position, position)]
        if not start.strip() or not text.endswith(start) or after[0] != after[1]:
            return False
        # `best step: 3` is no start; what a crash leaves of a name or number is right before it.
        rest = text.removesuffix(start)
        if not start[:1].isalnum() or not rest or rest[-1].isalnum():
            return True
        return rest.rstrip()[-1:] in (":", "=")

    def _add_total(self, position: int, scale: float, *, is_bar: bool) -> None:
        """Note that a number is the total of the one before it."""
        counter = self._field_at(position - 1)
        is_bar = is_bar or self._is_bar(position)
        if "." in self._tokens[position - 1] and not is_bar:
            self._split_name(position, counter)
            return
        if re.fullmatch(r"\s?%\s?\(", self._texts[position - 1]):
            return  # 81.25% (104/128)
        if counter is None and to_number(self._tokens[position - 1]) is not None:
            if not is_bar:
                self._enclose(position - 1)
            self._add(position - 1, BAR if is_bar else FRACTION, scale)
        elif counter is not None and is_bar:
            del self.fields[counter.name]
            self._add(position - 1, BAR, scale)
        counter = self._field_at(position - 1)
        if counter is not None:
            self.totals.append(Field(position, f"{counter.name}{TOTAL}", scale))

    def _enclose(self, position: int) -> bool:
        """Return whether a counter without a name stands right before; it is one of epochs then."""
        outer = next(reversed(self.fields.values()), None)
        if not outer or outer.name not in (FRACTION, INDEX) or position > outer.position + 2:
            return False
        between = self._texts[outer.position + 1 : position + 1]
        before = self._texts[outer.position].strip()
        begins = before.endswith("[") or (not before and not "".join(between).strip())
        whole = self._tokens[position].isdecimal()
        if not begins or not whole or any(_LETTER.search(text) for text in between):
            return False
        del self.fields[outer.name]
        self._add(outer.position, EPOCH, outer.scale)
        self.totals = [item for item in self.totals if item.position < outer.position]
        return True

    def _split_name(self, position: int, first: Field | None) -> None:
        """Name the values of `train/val loss=2.5/2.6`."""
        if first is None or "/" not in first.name:
            return
        own, _, others = first.name.partition("/")
        kind = first.name.rpartition("/")[2].partition(" ")[2]
        del self.fields[first.name]
        self._add(first.position, f"{own} {kind}".strip())
        self._add(
            position, others if "/" in others or " " in others else f"{others} {kind}".strip()
        )

    def _continues(self, before: Field, text: str) -> bool:
        """Return whether a line's first number is part of a name that goes on after it."""
        return (
            before.position == 0
            and _GOES_ON.fullmatch(text) is not None
            and _BARE_WORDS.fullmatch(self._texts[0]) is not None
            and not _COUNTING.search(before.name)
        )

    def _is_count_of(self, before: Field, token: str) -> bool:
        """Return whether a number counts the one after it, though it stands after the name."""
        whole = self._tokens[before.position].isdecimal()
        return whole and "." in token and not _COUNTING.search(before.name)

    def _is_bar(self, position: int) -> bool:
        """Return whether the fraction that ends at this number counts a progress bar."""
        before, after = self._texts[position - 1], self._texts[position + 1].lstrip()
        drawn = ("[==", "[=>", "[>", "[..", "##")
        return "%|" in before or "% |" in before or "###" in before or after.startswith(drawn)

    def _field_at(self, position: int) -> Field | None:
        last = next(reversed(self.fields.values()), None)
        return last if last and last.position == position else None

    def _name_by_place(self, position: int, bare: str) -> str | None:
        """Return the name of a number that has none before it: its unit, or its place."""
        following = self._texts[position + 1]
        if _FILE_LINE.search(bare):
            return None
        unit = _LONE_UNIT.match(following) or _COUNTED.match(following)
        if unit and following[unit.end() :].strip() not in (":", "="):
            name = unit[0].strip()
            return f"({name})" if name in ("s", "ms") else name
        if following.strip() == "/" and position + 1 < len(self._tokens):
            return None  # named with its total
        if bare.endswith("] [") and following.startswith("]"):
            return INDEX  # after a logger's prefix
        if position == 0 and bare in ("", "[", "#") and following[:1] in tuple("]:\t), "):
            return INDEX
        if not self.fields and position and bare.endswith("]") and following[:1] in (",", ":"):
            return INDEX
        named_after = _NAMED_AFTER.match(following)
        if named_after or not bare.endswith("|"):
            return named_after[1] if named_after else None
        return _name_before(f"{bare.removesuffix('|')} ")[0]  # train loss | 2.5


def _name_before(text: str) -> tuple[str | None, list[str]]:
    """Return the name that ends a text, if one does, and the words that are not part of it."""
    rest = _unwrap(text)
    separator = _SEPARATOR.search(rest)
    explicit = separator is not None and bool(separator[0].strip())
    rest = rest[: separator.start()] if separator else rest
    braced = _BRACED.search(rest) if explicit else None
    if braced:
        return braced[1], spare_words(rest[: braced.start()])
    call = _CALL.search(rest) if explicit else None
    if call:
        return call[1], spare_words(rest[: call.start()])
    quoted = _QUOTED.search(rest)
    if quoted:
        return (quoted[2] or quoted[4]).strip() or None, spare_words(rest[: quoted.start()])
    cell = _CELL.search(text)
    if cell and text.lstrip().startswith("|") and text.count("|") == 2:
        return (cell[1] if _LETTER.search(cell[1]) else None), []
    start, after_colon = 0, False
    for delimiter in _DELIMITER.finditer(rest):
        if delimiter[0] not in "()" or not _inside_name(rest, delimiter.start()):
            start, after_colon = (delimiter.end(), delimiter[0][0] == ":" and delimiter.start() > 0)
    spare = spare_words(rest[:start])
    name = rest[start:].strip(" \t*#-=~!?\"'`")
    name = name if name.endswith(".") else name.strip("._")
    # A value may be text too: `sep=abc loss=2.5`, `v_num: abc loss: 2.5`, `INFO:root:loss = 2.5`.
    words = re.split("[=:]", name)[-1].split()
    if len(words) > 1 and explicit and ("=" in name or (after_colon and start)):
        words = words[1:]
    while len(words) > 1 and words[0].strip("[]():").lower() in _LEVELS:
        words = words[1:]
    name = " ".join(words)
    if len(words) > 6:
        return None, [*spare, *spare_words(name)]
    return (name if _LETTER.search(name) and not _FILE.search(name) else None), spare


def _unwrap(text: str) -> str:
    """Return the text without what wraps the number after it: quotes, brackets, `tensor(`."""
    while True:
        wrapper = _WRAPPER.search(text)
        if not wrapper:
            return text
        rest = text[: wrapper.start()]
        opens = rest.rstrip()[-1:] in ("", ":", "=", "[", "(", ",", "{")
        if not opens and text.rstrip()[-1] in "\"'`" and _QUOTED.search(text):
            return text  # the end of a name in quotes
        text = rest


def _inside_name(text: str, position: int) -> bool:
    """Return whether a bracket belongs to a name that ends the text: `elapsed time (ms)`."""
    opening, closing = text.rfind("(", 0, position + 1), text.find(")", position)
    return (
        0 < opening < closing < opening + 20
        and closing >= len(text.rstrip()) - 1
        and not _DELIMITER.search(text[opening + 1 : closing])
    )


def spare_words(text: str) -> list[str]:
    """Return the words of a text in lower case, without those in names and paths."""
    return [word.lower() for word in _SPARE.findall(text)]
