"""A notification service of one's own on loopback: takes what apprise's `json://` posts, and heartbeats."""

import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class Inbox:
    """What has arrived. `status`: what posts are answered; `slow`: answer byte by byte, for ever."""

    def __init__(self):
        self.messages, self.beats, self.status, self.slow, self.redirect = [], [], 200, False, ""

    def serve(self, port=0):
        inbox = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self):
                body = self.rfile.read(int(self.headers["Content-Length"]))
                if inbox.slow:
                    self.drip()
                    return
                inbox.messages.append(json.loads(body) | {"path": self.path})
                self.answer(inbox.status)

            def do_GET(self):
                if inbox.slow:
                    self.drip()
                    return
                inbox.beats.append(self.path)
                self.answer(302 if inbox.redirect else inbox.status)

            def answer(self, status):
                self.send_response(status)
                if inbox.redirect:
                    self.send_header("Location", inbox.redirect)
                self.send_header("Content-Length", "0")
                self.end_headers()

            def drip(self):  # each byte comes within any timeout of a library, the end never
                try:
                    self.wfile.write(b"HTTP/1.1 200 OK\r\nX-Slow: ")
                    while inbox.slow:
                        self.wfile.write(b"a")
                        self.wfile.flush()
                        time.sleep(0.2)
                except OSError:
                    return

            def log_message(self, *_):
                """Print nothing."""

        self.server = ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.server.daemon_threads = True
        self.port = self.server.server_port
        threading.Thread(target=self.server.serve_forever, args=(0.05,), daemon=True).start()

    @property
    def url(self):
        """The service as apprise knows it, with a password and a token in it."""
        return f"json://alice:sesame@127.0.0.1:{self.port}/token-abc"

    @property
    def heartbeat(self):
        return f"http://alice:sesame@127.0.0.1:{self.port}/ping-secret/{{flow}}"

    def stop(self):
        self.slow = False
        self.server.shutdown()
        self.server.server_close()


@contextmanager
def inbox():
    """Yield an inbox that is served meanwhile."""
    found = Inbox()
    found.serve()
    try:
        yield found
    finally:
        found.stop()
