"""The Prometheus text format 0.0.4, read strictly: what this accepts, every scraper does."""

from __future__ import annotations

import re

Sample = tuple[str, tuple[tuple[str, str], ...]]
_HELP = re.compile(r"# HELP ([a-zA-Z_:][a-zA-Z0-9_:]*) ([^\n]+)")
_TYPE = re.compile(r"# TYPE ([a-zA-Z_:][a-zA-Z0-9_:]*) (counter|gauge)")
_SAMPLE = re.compile(r"([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{([^\n]*)\})? ([0-9]+(?:\.[0-9]+)?)")
_LABEL = re.compile(r'([a-zA-Z_][a-zA-Z0-9_]*)="((?:[^"\\\n]|\\[\\n"])*)"(?:,|$)')


def parse_metrics(text: str) -> dict[Sample, float]:
    """Samples by name and sorted labels. Raises AssertionError for anything out of order, repeated or malformed."""
    assert text.endswith("\n"), "the last line must end"
    found: dict[Sample, float] = {}
    types: dict[str, str] = {}
    current = ""
    for line in text[:-1].split("\n"):
        if matched := _HELP.fullmatch(line):
            current = matched[1]
            assert current not in types, f"{current} comes twice"
        elif matched := _TYPE.fullmatch(line):
            assert matched[1] == current, "TYPE must follow its HELP"
            types[current] = matched[2]
            assert (matched[2] == "counter") == current.endswith("_total"), f"{current} is a {matched[2]}"
        else:
            matched = _SAMPLE.fullmatch(line)
            assert matched, f"not a line of the format: {line!r}"
            assert matched[1] == current, f"{matched[1]} stands among the samples of {current}"
            assert current in types, f"{current} has no TYPE"
            key = (current, _labels(matched[2] or ""))
            assert key not in found, f"{key} comes twice"
            found[key] = float(matched[3])
    return found


def _labels(text: str) -> tuple[tuple[str, str], ...]:
    found, position = [], 0
    while position < len(text):
        matched = _LABEL.match(text, position)
        assert matched, f"not labels: {text!r}"
        found.append((matched[1], matched[2]))
        position = matched.end()
    return tuple(sorted(found))
