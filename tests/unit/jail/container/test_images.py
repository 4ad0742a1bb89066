from __future__ import annotations

from pathlib import Path

import pytest

from exeat.engine.client import Engine
from exeat.engine.errors import EngineError
from exeat.jail.container.images import find_image
from tests.support.engines.fake_engine import answer, serving


@pytest.mark.parametrize(
    "name",
    ["../containers/x", "a/../../containers/x", "a//b", "./a", "a/", "a?x=", "a b", "a%2f", "\u00e9", "-a", ":a", "@a"],
)
def test_what_cannot_be_a_name_is_asked_of_no_engine(tmp_path: Path, name: str) -> None:
    with serving(tmp_path / "s", lambda request: answer(200, {"Id": "1"})) as requests:
        engine = Engine(str(tmp_path / "s"), "docker")
        for good in ("debian", "docker.io/a_b.c:1-2", "localhost:5000/x/y@sha256:00", "4a5c5057f1b1", "sha256:00"):
            assert find_image(engine, good).id == "1"
        asked = len(requests)
        with pytest.raises(EngineError, match="cannot be the name of an image"):
            find_image(engine, name)
    assert len(requests) == asked
