"""`python -m tests.gateway.idlers PORT COUNT`: connections that say nothing, or half of something.

A process of its own, so that it and the gateway have a limit of open files each. Says `open` when
all are; when its input ends, how many the gateway has not closed.
"""

import contextlib
import resource
import select
import socket
import sys

HALF = (
    b"POST /v1/reports HTTP/1.1\r\nHost: x\r\nContent-Type: text/plain\r\n"
    b"Content-Length: 100\r\n\r\n{"
)


def main(port: int, count: int) -> None:
    """Every second one sends half a request."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    with contextlib.ExitStack() as stack:
        opened = []
        for number in range(count):
            opened.append(stack.enter_context(socket.create_connection(("127.0.0.1", port), 60)))
            if number % 2:
                opened[-1].sendall(HALF)
        print("open", flush=True)
        sys.stdin.read()
        watched = select.poll()
        for one in opened:
            watched.register(one, select.POLLIN | select.POLLHUP)
        # Nothing was asked for, so whatever can be read is an answer to give up, or the end.
        print(count - len(watched.poll(0)), flush=True)


main(*map(int, sys.argv[1:]))
