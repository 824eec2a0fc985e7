"""A page that shows how far a long preparation is, until the search page takes its place at the same address."""

import html
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

PAGE = """<!doctype html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">
<title>{title}</title><style>
:root {{ color-scheme: light dark; }}
body {{ font: 17px/1.5 system-ui, sans-serif; max-width: 40rem; margin: 12vh auto; padding: 0 1rem; }}
</style></head><body><main><h1>{title}</h1><ol id="steps">{steps}</ol>
<p>This page becomes the search page when everything is ready. Ctrl-C in the terminal stops it; the same command
continues where it stopped.</p></main>
<script>
setInterval(async () => {{
  try {{
    const answer = await fetch("/progress");
    if (answer.ok) document.getElementById("steps").innerHTML = await answer.text();
    else location.reload();
  }} catch {{ /* the service is about to start */ }}
}}, 1000);
</script></body></html>
"""


class ProgressPage:
    """Serves the progress of a few steps.

    Args:
        title: heading of the page.
        steps: what will be done, in order.
        host: address to listen at.
        port: port to listen at; 0 takes a free one.

    Raises:
        OSError: the port is in use.
    """

    def __init__(self, title: str, steps: list[str], host: str = "127.0.0.1", port: int = 8000) -> None:
        self.title, self.steps = title, steps
        self._now, self._detail = 0, ""
        shown = self

        class Handler(BaseHTTPRequestHandler):
            """Answers with the page, or with the list of steps alone."""

            def do_GET(self) -> None:
                whole = self.path.split("?")[0] != "/progress"
                steps = shown.list()
                content = (PAGE.format(title=html.escape(shown.title), steps=steps) if whole else steps).encode()
                self.send_response(200)
                self.send_header("content-type", "text/html; charset=utf-8")
                self.send_header("content-length", str(len(content)))
                self.send_header("cache-control", "no-store")
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, *_: object) -> None:
                """Requests are not logged."""

        self._server = ThreadingHTTPServer((host, port), Handler)
        self._server.daemon_threads = True
        self.port = int(self._server.server_address[1])
        self.address = f"http://{f'[{host}]' if ':' in host else host}:{self.port}/"
        self._thread = threading.Thread(target=self._server.serve_forever, daemon=True)
        self._thread.start()

    def begin(self, step: int, detail: str = "") -> None:
        """The steps before this one are done; ``detail`` says how far it is."""
        self._now, self._detail = step, detail

    def list(self) -> str:
        """The steps as HTML list items."""
        marks = ["done" if number < self._now else "" for number in range(len(self.steps))]
        if self._now < len(marks):
            marks[self._now] = self._detail or "in progress"
        return "".join(
            f"<li>{html.escape(step)}{f': {html.escape(mark)}' if mark else ''}</li>"
            for step, mark in zip(self.steps, marks, strict=True)
        )

    def close(self) -> None:
        """Stop serving and free the port."""
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(5)
