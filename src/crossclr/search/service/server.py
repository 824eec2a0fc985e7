"""`crossclr serve`: listen at an address and answer until the process ends."""

import ipaddress
import multiprocessing
import multiprocessing.connection
import os
import signal
import socket
import tempfile
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

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
    workers: int = 1,
) -> None:
    """Serve a run until the process ends.

    Args:
        run: a run that has an index, or its folder.
        host: address to listen at.
        port: port to listen at; 0 takes a free one.
        ready: called with the address once the service answers.
        token: what every request must carry; None: nothing.
        log: whether to write a JSON line for each request to standard error.
        workers: number of processes that answer; they share the vectors in memory, and each has its own encoders.

    Raises:
        OSError: the port is in use, or a worker ended.
    """
    searcher, instance = Searcher.open(run, text=workers == 1), new_instance()
    if workers == 1:
        server, listening = make_server(searcher, host, port, ready, instance, token, log)
        serve = partial(server.run, sockets=[listening])
    else:
        listening, path = listen(host, port), run.path if isinstance(run, Run) else Path(run)
        serve = partial(_run_workers, workers, ready, (path, listening, host, instance, token, log))
    with announce(searcher.folder.parent, instance, host, listening.getsockname()[1], searcher.meta["weights"]):
        serve()


def _run_workers(workers: int, ready: Callable[[str], None] | None, arguments: tuple[Any, ...]) -> None:
    """Start the workers and wait until the process is to end; a worker that ends by itself ends all."""
    context = multiprocessing.get_context("spawn")  # threads and locks do not survive a fork
    started = context.Event()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory() as private:
        tokens = str(Path(private) / "files.sqlite")
        processes = [context.Process(target=_work, args=(*arguments, tokens, started)) for _ in range(workers)]
        try:
            for process in processes:
                process.start()
            while not started.wait(0.1) and all(process.is_alive() for process in processes):
                pass
            if started.is_set() and ready is not None:
                ready(_address(arguments[2], arguments[1]))
            multiprocessing.connection.wait([process.sentinel for process in processes])
            raise OSError("a worker of the service ended, so the service stopped; its messages are above")
        except KeyboardInterrupt:
            pass
        finally:
            for process in processes:
                process.terminate()
            for process in processes:
                process.join(10)


def _work(
    run: Path, listening: socket.socket, host: str, instance: str, token: str | None, log: bool, tokens: str, ready: Any
) -> None:
    """One of several workers: answers at a socket that all share, and ends with the process that started it."""

    def follow() -> None:
        parent = multiprocessing.parent_process()
        if parent is not None:
            parent.join()
            os.kill(os.getpid(), signal.SIGTERM)

    threading.Thread(target=follow, daemon=True).start()
    server, _ = make_server(
        Searcher.open(run),
        host,
        ready=lambda _: ready.set(),
        instance=instance,
        token=token,
        log=log,
        listening=listening,
        tokens=tokens,
    )
    server.run(sockets=[listening])


def make_server(
    searcher: Searcher,
    host: str = "127.0.0.1",
    port: int = 8000,
    ready: Callable[[str], None] | None = None,
    instance: str | None = None,
    token: str | None = None,
    log: bool = False,
    listening: socket.socket | None = None,
    tokens: str = ":memory:",
) -> tuple[uvicorn.Server, socket.socket]:
    """A server that already listens; it answers after ``server.run(sockets=[...])``.

    Workers share the socket ``listening``, and the file ``tokens`` with the vectors of files that were sent.
    """
    faiss.omp_set_num_threads(1)  # more threads do not speed up a single query, and requests run in parallel
    at = listening or listen(host, port)

    def started() -> None:
        if ready is not None:
            ready(_address(host, at))

    config = uvicorn.Config(
        create_app(searcher, _hosts(host), started, token, log, tokens),
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
    return uvicorn.Server(config), at


def _address(host: str, listening: socket.socket) -> str:
    return f"http://{_in_address(host)}:{listening.getsockname()[1]}/"


def listen(host: str, port: int) -> socket.socket:
    """A socket that listens at an address.

    Raises:
        OSError: the port is in use, or this machine does not have the address.
    """
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
