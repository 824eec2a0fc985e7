"""`crossclr serve`: listen at an address and answer until the process ends."""

import ipaddress
import socket
from collections.abc import Callable
from pathlib import Path

import faiss
import uvicorn

from crossclr.search.searcher import Searcher
from crossclr.search.service.app import create_app
from crossclr.search.service.limits import PatientProtocol
from crossclr.search.service.running_service import HEADER, announce, new_instance
from crossclr.training import Run

CONNECTIONS = 256


def serve_run(
    run: Run | str | Path,
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    ready: Callable[[str], None] | None = None,
    token: str | None = None,
    log: bool = False,
) -> None:
    """Serve a run until the process ends.

    Args:
        run: a run that has an index, or its folder.
        host: address to listen at.
        port: port to listen at; 0 takes a free one.
        ready: called with the address once the service answers.
        token: what every request must carry; None: nothing.
        log: whether to write a JSON line for each request to standard error.

    Raises:
        OSError: the port is in use.
    """
    searcher, instance = Searcher.open(run), new_instance()
    server, listening = make_server(searcher, host, port, ready, instance, token, log)
    with announce(searcher.folder.parent, instance, host, listening.getsockname()[1], searcher.meta["weights"]):
        server.run(sockets=[listening])


def make_server(
    searcher: Searcher,
    host: str = "127.0.0.1",
    port: int = 8000,
    ready: Callable[[str], None] | None = None,
    instance: str | None = None,
    token: str | None = None,
    log: bool = False,
) -> tuple[uvicorn.Server, socket.socket]:
    """A server that already listens; it answers after ``server.run(sockets=[...])``."""
    faiss.omp_set_num_threads(1)  # more threads do not speed up a single query, and requests run in parallel
    listening = _listen(host, port)
    address = f"http://{_in_address(host)}:{listening.getsockname()[1]}/"

    def started() -> None:
        if ready is not None:
            ready(address)

    config = uvicorn.Config(
        create_app(searcher, _hosts(host), started, token, log),
        http=PatientProtocol,
        ws="none",
        log_level="error",
        access_log=False,
        server_header=False,
        headers=[(HEADER, instance)] if instance else [],
        limit_concurrency=CONNECTIONS,
        timeout_keep_alive=10,
        timeout_graceful_shutdown=2,
    )
    return uvicorn.Server(config), listening


def _listen(host: str, port: int) -> socket.socket:
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # With an explicit protocol asyncio turns off Nagle's algorithm, which delays answers by 40 ms.
    listening = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listening.bind((host, port))
        listening.listen(CONNECTIONS)  # now, so that early callers wait instead of being refused
    except OSError as error:
        listening.close()
        raise OSError(f"cannot listen at {host}, port {port}: {error.strerror}; choose another with --port") from error
    return listening


def _hosts(host: str) -> list[str] | None:
    """Host headers of a service on the loopback address; None for a service that is open to other machines."""
    try:
        local = ipaddress.ip_address(host).is_loopback
    except ValueError:
        local = host == "localhost"
    return ["localhost", "127.0.0.1", "[::1]", _in_address(host)] if local else None


def _in_address(host: str) -> str:
    return f"[{host}]" if ":" in host else host
