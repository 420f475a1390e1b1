"""A real S3 server over loopback (moto's, in a thread) whose answers can be spoilt."""

import contextlib
import logging
import threading
import time

BUCKET = "cpb-test"
ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "a-key-for-tests",
    "AWS_SECRET_ACCESS_KEY": "a-secret-for-tests",
    "AWS_DEFAULT_REGION": "us-east-1",
    "AWS_EC2_METADATA_DISABLED": "true",
    "AWS_CONFIG_FILE": "/nonexistent",
    "AWS_SHARED_CREDENTIALS_FILE": "/nonexistent",
}

BUSY = b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"
DENIED = b"<?xml version='1.0'?><Error><Code>AccessDenied</Code><Message>Access Denied</Message></Error>"


class Faults:
    """WSGI middleware. `plan(method, path)` names what becomes of a request: busy, denied, held, cut, slow, or None.

    Cut and slow spoil the answer alone. What is held never reaches the store: it waits for `clear()`, then is refused.

    `asked`: (method, path) of every request.
    """

    def __init__(self, app):
        self._app, self._lock = app, threading.Lock()
        self.asked = []
        self.plan = lambda method, path: None
        self._released = threading.Event()

    def clear(self):
        with self._lock:
            self.asked.clear()
            self.plan = lambda method, path: None
            self._released.set()
            self._released = threading.Event()

    def __call__(self, environ, start_response):
        method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
        with self._lock:
            self.asked.append((method, path))
            what, released = self.plan(method, path), self._released
        if what == "held":
            released.wait()
            what = "busy"
        if what in ("busy", "denied"):
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            status, body = ("503 Slow Down", BUSY) if what == "busy" else ("403 Forbidden", DENIED)
            start_response(status, [("Content-Type", "application/xml"), ("Content-Length", str(len(body)))])
            return [body if method != "HEAD" else b""]
        body = self._app(environ, start_response)
        if what == "cut":
            whole = b"".join(body)
            return [whole[: len(whole) // 2]]  # the header says more: the server closes the connection
        return self._trickle(body) if what == "slow" else body

    @staticmethod
    def _trickle(body):
        for byte in b"".join(body):
            time.sleep(0.3)
            yield bytes([byte])


@contextlib.contextmanager
def s3_server():
    """Yield (URL, faults) of a server that holds an empty bucket."""
    from moto.server import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import make_server

    logging.getLogger("werkzeug").setLevel(logging.ERROR)
    faults = Faults(DomainDispatcherApplication(create_backend_app))
    server = make_server("127.0.0.1", 0, faults, threaded=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    url = f"http://127.0.0.1:{server.server_port}"
    try:
        import boto3

        client = boto3.client(
            "s3", endpoint_url=url, aws_access_key_id="a", aws_secret_access_key="b", region_name="us-east-1"
        )
        client.create_bucket(Bucket=BUCKET)
        yield url, faults
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
