import json
import os
import subprocess
import time
import urllib.request
import uuid
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import websocket

from infonce_kernels.lessons.lab import command, copy_new

TOKEN = "token-of-this-test"


def test_copies_are_never_overwritten(pair: tuple[Path, Path], tmp_path: Path) -> None:
    lesson, folder = tmp_path / "01_sample.ipynb", tmp_path / "lab"
    lesson.write_bytes(pair[1].read_bytes())
    copy = folder / lesson.name

    assert copy_new([lesson], folder) == ["01_sample.ipynb: copied"]
    assert copy.read_bytes() == lesson.read_bytes()

    copy.write_text("mine")
    assert copy_new([lesson], folder) == []

    lesson.write_text("newer")
    (message,) = copy_new([lesson], folder)
    assert "moved on" in message and copy.read_text() == "mine"

    added = tmp_path / "02_more.ipynb"
    added.write_text("more")
    assert "02_more.ipynb: copied" in copy_new([lesson, added], folder)
    assert copy.read_text() == "mine"

    copy.unlink()
    assert copy_new([lesson], folder) == ["01_sample.ipynb: copied"]
    assert copy.read_text() == "newer"


@dataclass
class Server:
    """A running JupyterLab and its REST interface."""

    port: int

    def ask(self, path: str, method: str = "GET", body: dict | None = None) -> dict:
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/{path}",
            method=method,
            data=json.dumps(body).encode() if body is not None else None,
            headers={"Authorization": f"token {TOKEN}"},
        )
        with urllib.request.urlopen(request, timeout=30) as response:
            return json.loads(response.read() or b"null")


@pytest.fixture
def server(pair: tuple[Path, Path], tmp_path: Path, foreign_kernel: None) -> Iterator[Server]:
    """JupyterLab as `make lab` starts it, in a checkout whose lesson is paired with a source."""
    lab, runtime = tmp_path / "checkout" / "lab", tmp_path / "runtime"
    copy_new([pair[1]], lab)
    (lab / "src").mkdir()
    (lab / "jupytext.toml").write_text('formats = "ipynb,src//md:myst"')
    environment = {
        **os.environ,
        "JUPYTER_TOKEN": TOKEN,
        "JUPYTER_RUNTIME_DIR": str(runtime),
        "IPYTHONDIR": str(tmp_path / "ipython"),
    }
    log = tmp_path / "log"
    with log.open("wb") as sink:
        process = subprocess.Popen(
            command(lab, ["--no-browser", "--ServerApp.ip=127.0.0.1", "--ServerApp.port=0"]),
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=sink,
            stderr=sink,
        )
    try:
        deadline = time.monotonic() + 60
        while not (found := list(runtime.glob("jpserver-*.json"))):
            assert process.poll() is None and time.monotonic() < deadline, log.read_text()
            time.sleep(0.1)
        while not (text := found[0].read_text()):
            time.sleep(0.1)
        yield Server(json.loads(text)["port"])
    finally:
        process.terminate()
        process.wait(timeout=30)


def execute(server: Server, kernel: str, code: str) -> str:
    """Run code in a kernel of the server and return what it printed."""
    message = {
        "header": {
            "msg_id": uuid.uuid4().hex,
            "msg_type": "execute_request",
            "session": "test",
            "username": "",
            "version": "5.3",
        },
        "parent_header": {},
        "metadata": {},
        "content": {"code": code, "silent": False},
        "channel": "shell",
    }
    connection = websocket.create_connection(
        f"ws://127.0.0.1:{server.port}/api/kernels/{kernel}/channels",
        header=[f"Authorization: token {TOKEN}"],
        timeout=60,
    )
    printed = ""
    try:
        connection.send(json.dumps(message))
        while True:
            answer = json.loads(connection.recv())
            if answer["parent_header"].get("msg_id") != message["header"]["msg_id"]:
                continue
            if answer["msg_type"] == "stream":
                printed += answer["content"]["text"]
            if answer["content"].get("execution_state") == "idle":
                return printed
    finally:
        connection.close()


@pytest.mark.timeout(150)
def test_lab_opens_runs_and_saves_a_working_copy(server: Server, tmp_path: Path) -> None:
    path = "api/contents/01_sample.ipynb"
    model = server.ask(path)
    cells = model["content"]["cells"]
    assert cells[7]["metadata"]["jupyter"] == {"source_hidden": True}

    session = server.ask(
        "api/sessions",
        "POST",
        {"path": "01_sample.ipynb", "type": "notebook", "name": "", "kernel": {"name": "python3"}},
    )
    printed = execute(server, session["kernel"]["id"], cells[2]["source"] + "\n_ = 6 * 7\nprint(_)")
    assert printed == "loss 7.8512, error 3.1e-07, ok\n42\n"

    cells[2]["source"] = "'changed by the reader'"
    server.ask(path, "PUT", {"type": "notebook", "format": "json", "content": model["content"]})
    assert "changed by the reader" in (tmp_path / "checkout/lab/01_sample.ipynb").read_text()
    assert list((tmp_path / "checkout/lab/src").iterdir()) == []
