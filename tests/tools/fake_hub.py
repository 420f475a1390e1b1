"""A small Hub over loopback HTTP that speaks the endpoints huggingface_hub uses to publish and download."""

import base64
import hashlib
import json
import math
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qsl, unquote, urlencode, urlsplit

import yaml

TOKEN = "hf_" + "s3cret" * 5
PAGE = 4
"""Entries of a page of the route `tree`; the Hub's have 1,000."""


@dataclass
class Repo:
    """Commits of one repository, oldest first: (oid, {path: (kind, hash)})."""

    commits: list[tuple[str, dict[str, tuple[str, str]]]] = field(default_factory=list)
    private: bool = False

    @property
    def head(self) -> str:
        return self.commits[-1][0]

    @property
    def files(self) -> dict[str, tuple[str, str]]:
        return self.commits[-1][1]

    def at(self, revision: str | None) -> tuple[str, dict[str, tuple[str, str]]] | None:
        """The commit of a branch or hash; None where there is none."""
        if revision in (None, "main"):
            return self.commits[-1]
        return next((commit for commit in self.commits if commit[0] == revision), None)

    def commit(self, files: dict[str, tuple[str, str]]) -> str:
        text = json.dumps([len(self.commits), sorted(files.items())])
        self.commits.append((hashlib.sha1(text.encode()).hexdigest(), files))
        return self.head


@dataclass
class FakeHub:
    """State of the Hub; `faults` are (method, pattern, status) answered once each, before anything else."""

    url: str = ""
    repos: dict[str, Repo] = field(default_factory=dict)
    blobs: dict[str, bytes] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)
    users: set[str] = field(default_factory=set)  # Authorization headers that pass beside the token's
    faults: list[tuple[str, str, int]] = field(default_factory=list)
    on_preupload: list = field(default_factory=list)
    on_read: list = field(default_factory=list)
    lose_next_commit_answer: bool = False
    lock: threading.RLock = field(default_factory=threading.RLock)

    def content(self, repo: str, path: str) -> bytes:
        return self.blobs[self.repos[repo].files[path][1]]

    def count(self, method: str, pattern: str) -> int:
        return sum(m == method and re.search(pattern, p) is not None for m, p in self.requests)

    def fault(self, method: str, path: str) -> int | None:
        for fault in self.faults:
            if fault[0] == method and re.search(fault[1], path):
                self.faults.remove(fault)
                return fault[2]
        return None


def blob_oid(data: bytes) -> str:
    """Git's hash of a file's content."""
    return hashlib.sha1(b"blob %d\0" % len(data) + data).hexdigest()


REQUIRED = {"task": {"type"}, "dataset": {"type", "name"}, "metrics": {"type", "value"}}
"""What each result of a `model-index` must have."""
ALLOWED = {
    "task": {"type", "name"},
    "dataset": {"type", "name", "config", "split", "revision", "args"},
    "metrics": {"type", "value", "name", "config", "args", "verified"},
}
TASKS = {
    "time-series-forecasting",
    "tabular-regression",
    "tabular-classification",
    "text-generation",
    "other",
}
"""Some of the Hub's tasks (`PIPELINE_DATA` in huggingface.js)."""


COLOURS = {"red", "yellow", "green", "blue", "indigo", "purple", "pink", "gray"}
"""Of a Space's thumbnail (`spaces-config-reference.md` in hub-docs)."""


def space_faults(card: str) -> list[str]:
    """What the Hub would refuse of the metadata of a static Space."""
    data = yaml.safe_load(card.split("---\n", 2)[1])
    wrong = {
        name for name in ("title", "emoji", "license", "app_file") if not isinstance(data.get(name), str)
    }
    wrong |= {name for name in ("colorFrom", "colorTo") if data.get(name) not in COLOURS}
    return [*sorted(wrong), *(["sdk"] if data.get("sdk") != "static" else [])]


def metadata_faults(card: str) -> list[str]:
    """What the Hub would refuse of a card's metadata."""
    _, head, _ = card.split("---\n", 2)
    data = yaml.safe_load(head)
    faults = [f"pipeline_tag {data.get('pipeline_tag')}"] if data.get("pipeline_tag") not in TASKS else []
    faults += [
        f"{name} is no text" for name in ("license", "library_name") if not isinstance(data.get(name), str)
    ]
    faults += [] if all(isinstance(tag, str) for tag in data.get("tags", [])) else ["tags"]
    for model in data.get("model-index", []):
        faults += [] if isinstance(model.get("name"), str) else ["model-index without a name"]
        for result in model["results"]:
            for part, needed in REQUIRED.items():
                values = result[part] if part == "metrics" else [result.get(part, {})]
                faults += [
                    f"{part}: {sorted(value)}"
                    for value in values
                    if not needed <= value.keys() <= ALLOWED[part]
                ]
            faults += [
                f"value {metric['value']}"
                for metric in result["metrics"]
                if not isinstance(metric["value"], float) or not math.isfinite(metric["value"])
            ]
    return faults


@contextmanager
def fake_hub() -> Iterator[FakeHub]:
    """Serve a fake Hub on a free loopback port while the block runs."""
    hub = FakeHub()
    handler = type("Handler", (_Handler,), {"hub": hub})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


class _Handler(BaseHTTPRequestHandler):
    hub: FakeHub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def do_GET(self):
        self._route("GET")

    def do_HEAD(self):
        self._route("HEAD")

    def do_POST(self):
        self._route("POST")

    def do_PUT(self):
        self._route("PUT")

    def _route(self, method):
        path = unquote(urlsplit(self.path).path)
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        with self.hub.lock:
            self.hub.requests.append((method, path))
            # Data sets and Spaces have the routes of models behind another word; here they share its names, too.
            path = re.sub(
                r"^/api/(datasets|spaces)/", "/api/models/", re.sub(r"^/(datasets|spaces)/", "/", path)
            )
            fault = self.hub.fault(method, path)
            if fault:
                return self._json(fault, {"error": "scripted"})
            # Public repositories are read without a token, but not with a wrong one.
            name = re.match(r"/(?:api/models/)?([\w.-]+/[\w.-]+)", path)
            is_private = name and name[1] in self.hub.repos and self.hub.repos[name[1]].private
            public = path.startswith(("/blob/", "/api/validate-yaml")) or method in ("GET", "HEAD")
            public = public and not is_private
            given = self.headers.get("Authorization") or ""
            known = {f"Bearer {TOKEN}", *self.hub.users} | ({""} if public else set())
            if given not in known and not path.startswith("/blob/"):
                # As the Hub answers: it does not tell who gives no token whether a private repository exists.
                wrong = (
                    "Invalid credentials in Authorization header"
                    if given
                    else "Invalid username or password."
                )
                return self._json(401, {"error": wrong})
            for verb, pattern, action in _ROUTES:
                match = re.fullmatch(pattern, path)
                if verb == method and match:
                    return action(self, body, *match.groups())
            return self._json(404, {"error": f"no route for {method} {path}"})

    def _json(self, status, value, headers=()):
        data = json.dumps(value).encode()
        self.send_response(status)
        for name, text in headers:
            self.send_header(name, text)
        if status >= 400 and isinstance(value, dict):
            self.send_header("X-Error-Message", value.get("error", ""))
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data)

    def _create(self, body):
        asked = json.loads(body)
        name = f"{asked['organization']}/{asked['name']}"
        status = 409 if name in self.hub.repos else 200
        if status == 200:
            self._new_repo(name, private=asked.get("visibility") == "private")
        return self._json(
            status, {"url": f"{self.hub.url}/{name}", "error": "You already created this model repo"}
        )

    def _new_repo(self, name, *, private):
        data = b"*.safetensors filter=lfs diff=lfs merge=lfs -text\n"
        self.hub.blobs[blob_oid(data)] = data
        self.hub.repos[name] = Repo(private=private)
        self.hub.repos[name].commit({".gitattributes": ("file", blob_oid(data))})

    def _commit_at(self, name, revision):
        """The commit and its files, or None once a 404 has been sent."""
        if name not in self.hub.repos:
            return self._json(404, {"error": "Repository not found"}, [("X-Error-Code", "RepoNotFound")])
        if not (commit := self.hub.repos[name].at(revision)):
            return self._json(404, {"error": "Revision not found"}, [("X-Error-Code", "RevisionNotFound")])
        return commit

    def _info(self, _body, name, revision=None):
        if not (commit := self._commit_at(name, revision)):
            return None
        siblings = [{"rfilename": path} for path in commit[1]]
        private = self.hub.repos[name].private
        about = {"_id": "1", "id": name, "sha": commit[0], "private": private, "siblings": siblings}
        return self._json(200, about)

    def _tree(self, _body, name, revision, folder=None):
        """A page of the files and folders below a folder, and the address of the next page, as the Hub has them."""
        if not (commit := self._commit_at(name, revision)):
            return None
        asked = dict(parse_qsl(urlsplit(self.path).query))
        start = f"{folder}/" if folder else ""
        found = {}
        for path, (kind, oid) in sorted(commit[1].items()):
            if not path.startswith(start):
                continue
            inner = path.removeprefix(start).split("/")
            for depth in range(1, len(inner)):
                place = start + "/".join(inner[:depth])
                found[place] = {
                    "type": "directory",
                    "path": place,
                    "oid": blob_oid(place.encode()),
                    "size": 0,
                }
            size = len(self.hub.blobs[oid])
            found[path] = {"type": "file", "path": path, "oid": oid, "size": size}
            if kind == "lfs":
                found[path] |= {"lfs": {"oid": oid, "size": size, "pointerSize": 130}}
        if folder and not found:
            return self._json(404, {"error": "Entry not found"}, [("X-Error-Code", "EntryNotFound")])
        if asked.get("recursive", "false").lower() != "true":
            found = {path: about for path, about in found.items() if "/" not in path.removeprefix(start)}
        at = int(asked.get("cursor", 0))
        page, rest = list(found.values())[at : at + PAGE], len(found) > at + PAGE
        more = f"<{self.hub.url}{urlsplit(self.path).path}?{urlencode(asked | {'cursor': at + PAGE})}>"
        return self._json(200, page, [("Link", f'{more}; rel="next"')] if rest else [])

    def _history(self, _body, name, revision):
        if not self._commit_at(name, revision):
            return None
        about = {
            "title": "",
            "message": "",
            "authors": [{"user": "alice"}],
            "date": "2026-01-01T00:00:00.000Z",
        }
        return self._json(200, [{"id": oid} | about for oid, _ in reversed(self.hub.repos[name].commits)])

    def _refs(self, _body, name):
        if not (commit := self._commit_at(name, None)):
            return None
        main = {"name": "main", "ref": "refs/heads/main", "targetCommit": commit[0]}
        return self._json(200, {"branches": [main], "converts": [], "tags": []})

    def _validate(self, body):
        """The Hub's check of a card's metadata, as far as its specification (`modelcard.md` in hub-docs) says it."""
        asked = json.loads(body)
        faults = space_faults if asked["repoType"] == "space" else metadata_faults
        errors = [{"message": fault} for fault in faults(asked["content"])]
        return self._json(400 if errors else 200, {"errors": errors, "warnings": []})

    def _preupload(self, body, name):
        repo = self.hub.repos[name]
        files = []
        for item in json.loads(body)["files"]:
            base64.b64decode(item["sample"], validate=True)
            mode = "lfs" if item["path"].endswith((".safetensors", ".png", ".whl")) else "regular"
            oid = repo.files.get(item["path"], (None, None))[1]
            files.append({"path": item["path"], "uploadMode": mode, "shouldIgnore": False, "oid": oid})
        self._json(200, {"files": files, "commitOid": repo.head})
        for action in self.hub.on_preupload:  # someone else commits in between
            action(repo)
        self.hub.on_preupload.clear()

    def _lfs_batch(self, body, name):
        objects = []
        for item in json.loads(body)["objects"]:
            answer = {"oid": item["oid"], "size": item["size"]}
            if item["oid"] not in self.hub.blobs:
                upload = {"href": f"{self.hub.url}/blob/{item['oid']}"}
                verify = {"href": f"{self.hub.url}/{name}.git/info/lfs/verify"}
                answer["actions"] = {"upload": upload, "verify": verify}
            objects.append(answer)
        return self._json(200, {"transfer": "basic", "objects": objects})

    def _lfs_put(self, body, oid):
        if hashlib.sha256(body).hexdigest() != oid:
            return self._json(400, {"error": "hash differs"})
        self.hub.blobs[oid] = body
        return self._json(200, {})

    def _lfs_verify(self, body, _name):
        asked = json.loads(body)
        is_stored = len(self.hub.blobs.get(asked["oid"], b"")) == asked["size"]
        return self._json(200 if is_stored else 404, {})

    def _commit(self, body, name):
        lines = [json.loads(line) for line in body.splitlines()]
        repo, header = self.hub.repos[name], lines[0]["value"]
        if header.get("parentCommit") not in (None, repo.head):
            return self._json(412, {"error": "A commit has happened since. Please refresh and try again."})
        files = dict(repo.files)
        for line in lines[1:]:
            value = line["value"]
            if line["key"] == "file":
                data = base64.b64decode(value["content"])
                self.hub.blobs[blob_oid(data)] = data
                files[value["path"]] = ("file", blob_oid(data))
            elif line["key"] == "lfsFile":
                if value["oid"] not in self.hub.blobs:
                    return self._json(400, {"error": f"LFS object {value['oid']} was not uploaded"})
                files[value["path"]] = ("lfs", value["oid"])
            elif line["key"] == "deletedFile":
                del files[value["path"]]
        oid = repo.commit(files)
        if self.hub.lose_next_commit_answer:
            self.hub.lose_next_commit_answer = False
            return self._json(503, {"error": "gateway lost the answer"})
        return self._json(
            200, {"success": True, "commitOid": oid, "commitUrl": f"{self.hub.url}/{name}/commit/{oid}"}
        )

    def _resolve(self, _body, name, revision, path):
        if not (commit := self._commit_at(name, revision)):
            return None
        head, files = commit
        if path not in files:
            return self._json(404, {"error": "Entry not found"}, [("X-Error-Code", "EntryNotFound")])
        oid = files[path][1]
        data = self.hub.blobs[oid]
        self.send_response(200)
        self.send_header("ETag", f'"{oid}"')
        self.send_header("X-Repo-Commit", head)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)
            for action in self.hub.on_read:  # someone commits after the first file was read
                action(self.hub.repos[name])
            self.hub.on_read.clear()
        return None


_NAME = r"([\w.-]+/[\w.-]+)"
_ROUTES = [
    ("POST", "/api/repos/create", _Handler._create),
    ("POST", "/api/validate-yaml", _Handler._validate),
    ("GET", f"/api/models/{_NAME}(?:/revision/([^/]+))?", _Handler._info),
    ("GET", f"/api/models/{_NAME}/refs", _Handler._refs),
    ("GET", f"/api/models/{_NAME}/commits/([^/]+)", _Handler._history),
    ("GET", f"/api/models/{_NAME}/tree/([^/]+)(?:/(.+))?", _Handler._tree),
    ("POST", f"/api/models/{_NAME}/preupload/main", _Handler._preupload),
    ("POST", f"/{_NAME}\\.git/info/lfs/objects/batch", _Handler._lfs_batch),
    ("PUT", "/blob/([0-9a-f]+)", _Handler._lfs_put),
    ("POST", f"/{_NAME}\\.git/info/lfs/verify", _Handler._lfs_verify),
    ("POST", f"/api/models/{_NAME}/commit/main", _Handler._commit),
    ("HEAD", f"/{_NAME}/resolve/([^/]+)/(.+)", _Handler._resolve),
    ("GET", f"/{_NAME}/resolve/([^/]+)/(.+)", _Handler._resolve),
]
