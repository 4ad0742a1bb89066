"""Notes every import that a process tries after exeat has sealed itself (`exeat.run.sealing`).

It fails there, perhaps in a place that is seldom looked at. Which modules Python has loaded by then differs from
version to version. So all tests watch for it, in every jail, door and feature that they run.

Nothing is imported here but what every Python has loaded by now: it would be missed by none, and so be found by none.
"""

import os
import sys


class _Witness:
    """The last of the finders, once sealed: it is asked for modules that are not in memory."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        frame, places = sys._getframe(1), []
        while frame:  # type: ignore[truthy-bool]
            if "importlib" not in frame.f_code.co_filename:
                places.append(f"{frame.f_code.co_filename}:{frame.f_lineno}")
            frame = frame.f_back  # type: ignore[assignment]
        try:
            file = os.open(os.environ["TESTS_LATE_IMPORTS"], os.O_WRONLY | os.O_APPEND | os.O_CLOEXEC)
            os.write(file, f"{name}: {' < '.join(places[:6])}\n".encode())
            os.close(file)
        except (OSError, KeyError):
            pass  # inside a jail, where the file is not to be seen; but there it shows by itself


class _Finders(list):  # type: ignore[type-arg]
    """`sys.meta_path`, which sealing changes in place."""

    def __setitem__(self, key, value) -> None:  # type: ignore[no-untyped-def]
        super().__setitem__(key, value)
        if not any(getattr(each, "__name__", "") == "PathFinder" for each in self):
            self.append(_Witness)


def _run_the_next() -> None:
    """The machine may have a module of this name, too. Nothing else is to be found in this folder."""
    here = __file__.rpartition("/")[0]
    sys.path[:] = [each for each in sys.path if each != here]
    own = sys.modules.pop("sitecustomize")
    try:
        import sitecustomize  # type: ignore[import-not-found]  # noqa: F401
    except ImportError:
        sys.modules["sitecustomize"] = own


sys.meta_path = _Finders(sys.meta_path)
_run_the_next()
