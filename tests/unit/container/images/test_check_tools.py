"""A tool whose imports are not in the image fails the build, with its name."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from exeat.container.images.steps import check_tools


def _write(folder: Path, **sources: str) -> str:
    for name, source in sources.items():
        (folder / f"{name}.py").write_text(source)
    tools = {name: {"file": f"{name}.py", "function": name, "is_async": False} for name in sources}
    (folder / "manifest.json").write_text(json.dumps({"version": 1, "tools": tools}))
    return str(folder)


def test_what_is_there_is_good_and_what_need_not_be_there_too(tmp_path: Path) -> None:
    check_tools.main(_write(tmp_path, a="import os.path, json\nfrom collections import abc\n", b=""))
    check_tools.main(_write(tmp_path, c="try:\n    import not_here\nexcept ImportError:\n    not_here = None\n"))


def test_what_is_missing_is_named_and_nothing_is_run(tmp_path: Path) -> None:
    folder = _write(tmp_path, a="import exeat_missing.x\nraise SystemError\n", b="from other_missing import y\n")
    with pytest.raises(SystemExit, match=r"(?s)tool a imports exeat_missing, .*tool b imports other_missing,"):
        check_tools.main(folder)


def test_what_a_tool_begins_with_must_be_there(tmp_path: Path) -> None:
    """And nothing that it may not come to, or that is in another function."""
    begins = 'async def a(x):\n    """Words."""\n    import json\n    from missing_a.x import y\n    return y\n'
    folder = _write(tmp_path, a=begins)
    with pytest.raises(SystemExit, match="tool a imports missing_a, which"):
        check_tools.main(folder)
    later = "def b(x):\n    if x:\n        import missing_b\n    import missing_c\ndef c():\n    import missing_d\n"
    check_tools.main(_write(tmp_path, b=later))


def test_a_tool_for_another_python_is_said_to_be_one(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="tool a is not written for Python 3"):
        check_tools.main(_write(tmp_path, a="def f(: pass"))
