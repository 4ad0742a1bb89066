"""Run the demo; put what it prints into the README and, as an animated terminal, into docs/demo.svg. `make demo-svg`.

The picture needs no script and no font of its own. Only the animation hides lines, so where nothing moves, or the
reader wants nothing to move, all of them are there at once.
"""

from __future__ import annotations

import html
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
README, PICTURE = ROOT / "README.md", ROOT / "docs" / "demo.svg"
BLOCK = re.compile(r"(?<=```text\n)\$ exeat run .*?(?=```)", re.DOTALL)

COLUMN, LINE, GAP = 8, 20, 8  # pixels
LEFT, TOP = 20, 64
PROMPT_S, TYPING_S, STEP_S, PAUSE_S = 0.3, 1.2, 0.18, 0.5
# What a reader's eye should follow. The first that matches colours its piece of a line; the rest of it stays as it is.
INKS = (
    ("key", r"sk-live-\S+"),
    ("fake", r"sk-\w{40}"),
    ("yes", r"200 (?:hello|your key:)|unchanged|api\.test, docs\.test"),
    (
        "no",
        r"403 exeat:.*|Name or service not known|Connection re\w+(?: by peer)?|Operation not .*|No such .*",
    ),
    ("soft", r"\([^)]*\)$|^[^:]*:  +"),
)
STYLE = """
text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,"DejaVu Sans Mono","Liberation Mono",monospace;fill:#c9d1d9;
white-space:pre}
.typed{fill:#fff;font-weight:600}.yes{fill:#56d364}.no{fill:#ff8a80}.key{fill:#f2cc60}.fake{fill:#d2a8ff}.soft{fill:#8b949e}
.head{fill:#79c0ff;font-weight:600}.title{fill:#8b949e;text-anchor:middle}
.line{animation:show 1ms both}
@keyframes show{from{opacity:0}}
@keyframes type{from{clip-path:inset(0 100% 0 0)}to{clip-path:inset(0 0 0 0)}}
"""
STILL = "\n@media (prefers-reduced-motion:reduce){.line,.typed{animation:none}}\n"


def colour(text: str) -> str:
    """Wrap the pieces of a line that have an ink, and escape all of it."""
    for ink, pattern in INKS:
        if found := re.search(pattern, text):
            before, after = text[: found.start()], text[found.end() :]
            return f'{colour(before)}<tspan class="{ink}">{html.escape(found[0])}</tspan>{colour(after)}'
    return html.escape(text)


def draw_line(text: str, y: int, at_s: float) -> str:
    """A line. What follows a wide gap has its own column: fonts differ in width, and columns must not."""
    spans, at = "", 0
    for piece in re.split(r"  +", text.strip()):
        at = text.index(piece, at)
        spans += f'<tspan x="{LEFT + at * COLUMN}">{colour(piece)}</tspan>'
    kind = "line head" if is_title(text) else "line"
    return f'<text class="{kind}" style="animation-delay:{at_s:.2f}s" y="{y}">{spans}</text>'


def is_title(line: str) -> bool:
    return line[:1].islower()


def draw(printed: str) -> str:
    command, *lines = printed.splitlines()
    at_s, y, drawn = PROMPT_S + TYPING_S, TOP, []
    for line in lines:
        if not line or is_title(line):
            at_s += PAUSE_S
            y += GAP
        if line:
            at_s += STEP_S
            y += LINE
            drawn.append(draw_line(line, y, at_s))
    width, height = 2 * LEFT + 100 * COLUMN, y + LEFT + 4
    typing = f".typed{{animation:type {TYPING_S}s steps({len(command)}) {PROMPT_S}s both}}"
    dots = "".join(f'<circle cx="{22 + 20 * place}" cy="20" r="6" fill="#484f58"/>' for place in range(3))
    size = f'viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
    return f"""<svg xmlns="http://www.w3.org/2000/svg" {size} role="img">
<title>exeat runs an agent: what it may reach, what it may not, and a key that it uses and never holds</title>
<style>{STYLE}{typing}{STILL}</style>
<rect x=".5" y=".5" width="{width - 1}" height="{height - 1}" rx="10" fill="#0d1117" stroke="#484f58"/>
{dots}<text class="title" x="{width // 2}" y="25">make demo</text>
<text class="typed" x="{LEFT}" y="{TOP}">{html.escape(command)}</text>
{chr(10).join(drawn)}
</svg>
"""


def main() -> None:
    argv = [sys.executable, "-m", "examples.demo"]
    printed = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True, timeout=120).stdout
    README.write_text(BLOCK.sub(lambda _: printed, README.read_text(), count=1))
    PICTURE.write_text(draw(printed))


if __name__ == "__main__":
    main()
