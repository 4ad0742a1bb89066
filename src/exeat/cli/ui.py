"""`exeat ui`: its options and messages. The page is in exeat.ui."""

from __future__ import annotations

import argparse
from collections.abc import Sequence


def add_ui_options(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Show the sandboxes on a web page: what they decide as it happens, what was\n"
        "blocked and the rule that would allow it, questions that wait, bytes per host.\n"
        "The page can change the lists of sandboxes, as exeat proxy can."
    )
    parser.epilog = (
        "The page is served to this machine only (127.0.0.1). The link has a new\n"
        "key in it each time: anyone with the link can do what the page can.\n"
        "Ctrl-C ends it. exit status: 0; 1 if the port is taken"
    )
    parser.add_argument("--port", metavar="N", default="0", help="listen on port N; 0 takes any that is free (default)")
    parser.add_argument("--open", action="store_true", help="open the page in the browser as well")
    parser.set_defaults(run=_show)


def _show(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    from exeat.serve.settings import read_port
    from exeat.ui.server import serve_page

    return serve_page(read_port(options.port, "--port"), on_ready=_say, open_link=_open if options.open else None)


def _say(link: str) -> None:
    print(f"The page is at\n\n  {link}\n\nAnyone with this link can change your sandboxes. Ctrl-C ends it.", flush=True)


def _open(link: str) -> None:
    import webbrowser

    if not webbrowser.open(link):
        print("No browser could be opened: follow the link.", flush=True)
