"""The kernel's view of layers is the measure: what is listed, folded and applied comes to exactly what it shows."""

from __future__ import annotations

import random

import pytest

from tests.support.fixtures.layers import Machine

pytestmark = pytest.mark.thorough

_FOLDERS = ["d1", "d2", "d1/d3", "d2/d4", "d1/d3/d5"]
_FILES = [f"{folder}/f{number}" for folder in (".", *_FOLDERS) for number in (1, 2)]
# Of folders neither times nor permissions: an existing folder keeps its own when something is applied.
_LISTING = r"find . -mindepth 1 \( -type d -printf '%P %y\n' \) -o -printf '%P %y %m %s %l\n' | LC_ALL=C sort; " + (
    "LC_ALL=C find . -type f -exec md5sum {} + | LC_ALL=C sort"
)


def _steps(chance: random.Random, count: int) -> str:
    """A script of changes, some of which fail for want of what earlier ones have removed."""
    lines = []
    for _ in range(count):
        file, folder = chance.choice(_FILES), chance.choice(_FOLDERS)
        lines.append(
            chance.choice([
                f"echo {chance.random()} > {file}", f"echo more >> {file}", f"rm -f {file}",
                f"chmod 6{chance.choice('46')}0 {file}",
                f"mkdir -p {folder}", f"rm -rf {folder}", f"rm -rf {folder} && mkdir -p {folder}",
                f"rm -f {file} && ln -s {chance.choice(_FILES)} {file}", f"chmod 7{chance.choice('05')}0 {folder}",
                f"mv {chance.choice(_FILES)} {file}", f"ln -f {chance.choice(_FILES)} {file}",
            ])
        )  # fmt: skip
    return "\n".join(f"{{ {line}; }} 2>/dev/null || true" for line in lines)


@pytest.mark.parametrize("seed", range(3, 5))
def test_what_is_applied_is_what_the_last_run_saw(machine: Machine, seed: int) -> None:
    chance = random.Random(seed)
    machine.do(_steps(chance, 40))
    for _ in range(4):
        assert machine.run(_steps(chance, 25))["status"] == 0
    listing = machine.base / "listing"
    assert machine.run(f"({_LISTING}) > {listing}; chmod 644 {listing}")["status"] == 0
    seen = listing.read_text()
    machine.python(
        "from exeat.files.layers.folding import fold_layers\nimport exeat.files.layers.folding as folding\n"
        "from exeat.sandbox.folder import open_sandbox\nfolding.MAX_LAYERS = 1\nfold_layers(open_sandbox('box'))"
    )
    assert machine.run(f"({_LISTING}) > {listing}; chmod 644 {listing}")["layers"] == 1
    assert listing.read_text() == seen
    done = machine.files("apply", "--all", "--yes")
    assert done.status == 0, done
    assert machine.do(_LISTING) == seen
    assert "nothing" in machine.files("diff").stdout
