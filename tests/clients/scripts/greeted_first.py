"""Log in the way MySQL's clients do, which wait for the server's greeting before they say a word: HOST PORT LOGIN."""

import socket
import sys

host, port, login = sys.argv[1:]
with socket.create_connection((host, int(port)), timeout=20) as conn, conn.makefile("rb") as stream:

    def read_packet() -> bytes:
        head = stream.read(4)
        if len(head) < 4:
            sys.exit("the server has hung up")
        return stream.read(int.from_bytes(head[:3], "little"))

    greeting = read_packet()
    version = greeting[1 : greeting.index(b"\0")].decode()
    conn.sendall(len(login).to_bytes(3, "little") + b"\x01" + login.encode())
    answer = read_packet()
    if answer[:1] != b"\0":
        sys.exit(answer[1:].decode())
    print(version + answer[1:].decode())
