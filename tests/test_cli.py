"""The command line: what it prints, and exit codes that a script can rely on."""

import json
import subprocess
import sys

import pytest

from infonce_kernels import cli, verify
from infonce_kernels.build import backends


def run(*arguments):
    command = [sys.executable, "-m", "infonce_kernels", *arguments]
    return subprocess.run(command, capture_output=True, text=True)


def test_doctor_says_what_can_run():
    facts = json.loads(run("doctor", "--json").stdout)
    assert facts["backends"] == backends()
    shown = run("doctor")
    assert shown.returncode == 0
    assert all(name in shown.stdout for name in ("emulator", "cuda", "compile", "torch"))


def test_doctor_names_the_missing_compiler(monkeypatch):
    monkeypatch.setenv("CXX", "/nonexistent/g++")
    result = run("doctor")
    assert "/nonexistent/g++" in " ".join(result.stdout.split())


def test_verify_prints_a_table_and_exits_with_0():
    result = run("verify", "--rung", "v0_reference")
    assert result.returncode == 0, result.stderr
    assert all(word in result.stdout for word in ("v0_reference", "pytorch", "right"))


def test_verify_for_a_script():
    result = run("verify", "--rung", "v0_reference", "--json")
    report = json.loads(result.stdout)
    assert report["passed"] is True
    assert {check["pass"] for check in report["checks"]} == {"forward", "backward"}


def test_verify_exits_with_1_where_a_rung_is_wrong(monkeypatch, capsys):
    monkeypatch.setitem(verify.__globals__["LIMITS"], "forward", 0.0)
    assert cli.main(["verify", "--rung", "v0_reference"]) == 1
    assert "wrong" in capsys.readouterr().out


def test_a_bad_call_exits_with_2():
    assert run("verify", "--rung", "v9").returncode == 2
    assert run("verify", "--backend", "tpu").returncode == 2
    assert run().returncode == 2


@pytest.mark.skipif(backends()["cuda"] is None, reason="cuda can run here")
def test_verify_says_why_a_backend_cannot_run_here():
    result = run("verify", "--backend", "cuda")
    assert result.returncode == 2
    assert backends()["cuda"].split()[0] in result.stderr
