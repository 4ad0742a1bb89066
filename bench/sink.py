"""`python -m bench.sink PORT SHA256 WORD`: takes request bodies, and answers WORD to one with that digest, else 422."""

import hashlib
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import ClassVar

_PIECE = 1 << 18


class Sink(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    digest: ClassVar[str]
    word: ClassVar[bytes]

    def do_POST(self) -> None:
        seen = hashlib.sha256()
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            while size := int(self.rfile.readline(), 16):
                self._take(seen, size)
                self.rfile.readline()
            while self.rfile.readline().strip():
                pass
        else:
            self._take(seen, int(self.headers["Content-Length"]))
        right = seen.hexdigest() == self.digest
        answer = self.word if right else b"not the body that was expected\n"
        self.send_response(200 if right else 422)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def _take(self, seen: "hashlib._Hash", size: int) -> None:
        while size > 0:
            piece = self.rfile.read(min(size, _PIECE))
            if not piece:
                raise ConnectionError("the body was cut off")
            seen.update(piece)
            size -= len(piece)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
        """Says nothing: a line for each request would only cost time."""


def main(port: str, digest: str, word: str) -> None:
    Sink.digest, Sink.word = digest, word.encode() + b"\n"
    with ThreadingHTTPServer(("127.0.0.1", int(port)), Sink) as server:
        server.serve_forever()


if __name__ == "__main__":
    main(*sys.argv[1:])
