"""A hub on loopback that has one model, as far as huggingface_hub asks: for what HF_ENDPOINT names."""

import hashlib
import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from flask import Flask, Response, jsonify, request
from werkzeug.serving import make_server

COMMIT = "c0ffee" + "0" * 34

FIRST_BYTES = 1024


class FakeHub:
    """Serves the files of a folder as the model `name`.

    `gets` counts GETs of whole files by name, `peeks` those of a part. While `may_go_on` is not set, a GET of weights
    stops after its first bytes.
    """

    def __init__(self, folder: Path, name: str) -> None:
        self.gets: Counter[str] = Counter()
        self.peeks: Counter[str] = Counter()
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self._files = {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}
        self._name = name
        app = Flask("hub")
        app.get("/api/models/<path:asked>")(self._api)
        app.get("/<org>/<model>/resolve/<revision>/<path:file>")(self._file)
        self._server = make_server("127.0.0.1", 0, app, threaded=True)
        self._serving = threading.Thread(target=self._server.serve_forever, daemon=True)

    def __enter__(self) -> "FakeHub":
        self._serving.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.may_go_on.set()
        self._server.shutdown()
        self._serving.join()
        self._server.server_close()

    @property
    def address(self) -> str:
        """For HF_ENDPOINT."""
        return f"http://127.0.0.1:{self._server.port}"

    def _api(self, asked: str) -> Any:
        if not f"{asked}/".startswith(f"{self._name}/"):
            return jsonify(error="Repository not found"), 404
        if "/tree/" in asked:
            return jsonify([self._entry(name) for name in sorted(self._files)])
        siblings = [{"rfilename": name} for name in sorted(self._files)]
        return jsonify(id=self._name, sha=COMMIT, siblings=siblings, private=False, tags=[])

    def _entry(self, name: str) -> dict[str, Any]:
        content = self._files[name]
        entry: dict[str, Any] = {
            "type": "file",
            "path": name,
            "size": len(content),
            "oid": hashlib.sha1(content).hexdigest(),
        }
        if name.endswith(".safetensors"):
            entry["lfs"] = {"oid": _sha256(content), "size": len(content), "pointerSize": 130}
        return entry

    def _file(self, org: str, model: str, revision: str, file: str) -> Response:
        content = self._files.get(file)
        if f"{org}/{model}" != self._name or content is None:
            missing = "EntryNotFound" if f"{org}/{model}" == self._name else "RepoNotFound"
            return Response("not found", 404, {"X-Error-Code": missing, "X-Repo-Commit": COMMIT})
        headers = {"ETag": f'"{_sha256(content)}"', "X-Repo-Commit": COMMIT}
        if request.method == "HEAD":
            return Response(content, 200, headers)  # the server leaves the content out
        asked = request.headers.get("Range")
        if asked is not None:
            # The head of a safetensors file, which vLLM reads to learn the type of its numbers.
            first, _, last = asked.removeprefix("bytes=").partition("-")
            part = content[int(first) : int(last) + 1 if last else None]
            self.peeks[file] += 1
            return Response(part, 206, headers)
        self.gets[file] += 1
        return Response(
            self._sent(file, content), 200, {**headers, "Content-Length": str(len(content))}
        )

    def _sent(self, file: str, content: bytes) -> Iterator[bytes]:
        yield content[:FIRST_BYTES]
        if file.endswith(".safetensors"):
            self.may_go_on.wait(120)
        yield content[FIRST_BYTES:]


def _sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()
