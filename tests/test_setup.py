"""Set-up: the three lists of dependencies agree, and the Makefile does what it promises.

The Makefile runs on a PATH of the test's own, with an interpreter that logs what it is asked.
"""

import os
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
CONDA_NAMES = {"pytorch": "torch", "cuda-nvcc": "cuda-toolkit"}
# What conda brings that pip cannot, and pip itself.
CONDA_ONLY = {"python", "pip", "make", "cxx-compiler"}


def requirements(lines: list[str]) -> dict[str, Requirement]:
    parsed = map(Requirement, lines)
    return {canonicalize_name(r.name): r for r in parsed}


def direct() -> dict[str, Requirement]:
    """Every direct dependency that `make` installs."""
    return requirements([*PROJECT["dependencies"], *EXTRAS["notebooks"], *EXTRAS["test"]])


def optional() -> dict[str, Requirement]:
    """What only `infonce bench` asks for, where somebody has installed it."""
    return requirements(EXTRAS["peers"])


def pins() -> dict[str, Requirement]:
    lines = (ROOT / "constraints.txt").read_text("utf-8").splitlines()
    return requirements([line for line in lines if line and not line.startswith("#")])


def conda() -> dict[str, Requirement]:
    entries = yaml.safe_load((ROOT / "environment.yml").read_text("utf-8"))["dependencies"]
    found = requirements([entry for entry in entries if isinstance(entry, str)])
    return {CONDA_NAMES.get(name, name): r for name, r in found.items()}


def test_extras_are_those_compared_here() -> None:
    assert set(EXTRAS) == {"notebooks", "test", "peers", "nvcc"}


def test_constraints_pin_every_direct_dependency_inside_its_range() -> None:
    allowed = direct() | optional()
    assert set(pins()) == set(allowed)
    for name, pin in pins().items():
        (specifier,) = pin.specifier
        assert specifier.operator == "=="
        assert allowed[name].specifier.contains(specifier.version), f"{pin} is out of range"


def test_conda_environment_says_the_same() -> None:
    entries = conda()
    assert entries.pop("python").specifier == PROJECT["requires-python"]
    assert {n: str(r.specifier) for n, r in entries.items() if n not in CONDA_ONLY} == {
        n: str(r.specifier) for n, r in direct().items()
    }


def test_conda_environment_offers_the_same_nvcc() -> None:
    offered = re.search(r"# - cuda-nvcc=(\S+)", (ROOT / "environment.yml").read_text("utf-8"))
    versions = {str(r.specifier) for r in requirements(EXTRAS["nvcc"]).values()}
    assert offered and versions == {f"=={offered.group(1)}"}


def test_conda_environment_offers_the_peers() -> None:
    text = (ROOT / "environment.yml").read_text("utf-8")
    offered = yaml.safe_load(text.replace("- -e .\n", "").replace("# - -e", "- -e"))
    assert offered["dependencies"][-1] == {"pip": ["-e .[peers]"]}


def test_every_dependency_says_why() -> None:
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    lines = [line for line in text.splitlines() if re.match(r'    "[\w-]+(\[\w+\])?>=', line)]
    assert len(lines) == len(direct() | optional())
    assert [line for line in lines if "# " not in line] == []


TOOLS = ["make", "sh", "cat", "pwd", "mkdir", "chmod", "rm", "cp", "touch", "env"]
FAKE_PYTHON = """#!{shell}
case "$1" in
    -c) case "$2" in *version_info*) exit {too_old} ;; *ensurepip*) exit {no_venv} ;; esac ;;
    --version) echo "Python {version}"; exit ;;
esac
echo "$0 $*" >> "$LOG"
[ "$2" != venv ] || {{ mkdir -p "$3/bin"; cp "$0" "$3/bin/python"; }}
"""


class Checkout:
    """A folder with this Makefile, on a PATH with nothing but what make needs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "a clone with blanks"
        self.bin = folder / "bin"
        self.log = folder / "log"
        self.folder.mkdir()
        self.bin.mkdir()
        for name in ("Makefile", "pyproject.toml", "constraints.txt"):
            shutil.copy(ROOT / name, self.folder)
        for tool in TOOLS:
            (self.bin / tool).symlink_to(shutil.which(tool))
        self.provide("g++", "exit 0")
        self.python()

    def provide(self, name: str, script: str) -> None:
        (self.bin / name).write_text(f"#!{shutil.which('sh')}\n{script}\n")
        (self.bin / name).chmod(0o755)

    def python(self, version: str = "3.12.1", too_old: int = 0, no_venv: int = 0) -> None:
        path = self.bin / "python3"
        path.write_text(
            FAKE_PYTHON.format(
                shell=shutil.which("sh"), version=version, too_old=too_old, no_venv=no_venv
            )
        )
        path.chmod(0o755)

    def make(self, *arguments: str) -> tuple[int, list[str], str]:
        """Return the exit code, the Python commands run and what was printed."""
        self.log.write_text("")
        result = subprocess.run(
            ["make", *arguments],
            cwd=self.folder,
            env={"PATH": str(self.bin), "LOG": str(self.log)},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        return result.returncode, self.log.read_text().splitlines(), result.stdout + result.stderr


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    return Checkout(tmp_path)


def test_first_run_installs_and_the_second_only_runs(checkout: Checkout) -> None:
    code, commands, printed = checkout.make("lint")
    assert code == 0, printed
    assert commands[0].endswith("python3 -m venv .venv")
    assert any("-c constraints.txt -e .[notebooks,test]" in c for c in commands)
    assert commands[-1] == ".venv/bin/python -m ruff format --check ."

    assert checkout.make("lint")[1] == [
        ".venv/bin/python -m ruff check .",
        ".venv/bin/python -m ruff format --check .",
    ]


@pytest.mark.parametrize("changed", ["pyproject.toml", "constraints.txt"])
def test_changed_dependencies_are_installed(checkout: Checkout, changed: str) -> None:
    checkout.make("lint")
    later = (checkout.folder / ".venv/installed-in").stat().st_mtime + 2
    os.utime(checkout.folder / changed, (later, later))
    commands = checkout.make("lint")[1]
    assert any(" install " in c for c in commands)
    assert not any(" venv " in c for c in commands)


def test_copied_folder_is_installed_again(checkout: Checkout, tmp_path: Path) -> None:
    checkout.make("lint")
    checkout.folder = Path(shutil.copytree(checkout.folder, tmp_path / "copy"))
    assert any(" -e " in c for c in checkout.make("lint")[1])
    assert not any(" -e " in c for c in checkout.make("lint")[1])


def test_interrupted_set_up_is_taken_up_again(checkout: Checkout) -> None:
    checkout.make("lint")
    (checkout.folder / ".venv/installed-in").unlink()
    assert any(" -e " in c for c in checkout.make("lint")[1])


def test_cpu_wheels_only_without_nvidia_smi(checkout: Checkout) -> None:
    def extra() -> list[str]:
        (checkout.folder / "constraints.txt").touch()
        shutil.rmtree(checkout.folder / ".venv", ignore_errors=True)
        return [c for c in checkout.make("lint")[1] if "--extra-index-url" in c]

    (command,) = extra()
    assert "https://download.pytorch.org/whl/cpu torch" in command
    assert "--retries" in command and "--timeout" in command
    checkout.provide("nvidia-smi", "exit 0")
    assert extra() == []


def test_given_interpreter_is_used_as_it_is(checkout: Checkout) -> None:
    (checkout.bin / "g++").unlink()
    code, commands, printed = checkout.make("sync", "PY=python3")
    assert code == 0, printed
    assert [c.split(maxsplit=1)[1] for c in commands] == ["-m infonce_kernels.lessons.sync"]
    assert not (checkout.folder / ".venv").exists()


def test_given_interpreter_finds_the_package_in_the_checkout(checkout: Checkout) -> None:
    checkout.provide("own python", 'echo "[$PYTHONPATH]"')
    assert f"[{checkout.folder}]" in checkout.make("sync", "PY=own python")[2]


def test_old_python_is_named(checkout: Checkout) -> None:
    checkout.python(version="3.9.2", too_old=1)
    code, commands, printed = checkout.make("lint")
    assert code == 2 and "No Python 3.11 or later" in printed and "Python 3.9.2" in printed
    assert commands == [] and not (checkout.folder / ".venv").exists()


def test_no_python_at_all(checkout: Checkout) -> None:
    (checkout.bin / "python3").unlink()
    code, _, printed = checkout.make("lint")
    assert code == 2 and "No Python 3.11 or later" in printed


def test_newer_python_under_its_own_name_is_found(checkout: Checkout) -> None:
    shutil.copy(checkout.bin / "python3", checkout.bin / "python3.12")
    checkout.python(version="3.9.2", too_old=1)
    code, commands, printed = checkout.make("lint")
    assert code == 0, printed
    assert commands[0].endswith("python3.12 -m venv .venv")


def test_missing_compiler_is_named(checkout: Checkout) -> None:
    (checkout.bin / "g++").unlink()
    code, commands, printed = checkout.make("lint")
    assert code == 2 and "No g++" in printed and "apt install g++" in printed
    assert commands == []


def test_missing_venv_module_is_named(checkout: Checkout) -> None:
    checkout.python(no_venv=1)
    code, commands, printed = checkout.make("lint")
    assert code == 2 and "apt install python3-venv" in printed
    assert commands == []


def test_failed_installation_is_not_taken_for_done(checkout: Checkout) -> None:
    python = checkout.bin / "python3"
    python.write_text(python.read_text() + 'case "$*" in *" -e "*) exit 7 ;; esac\n')
    assert checkout.make("lint")[0] == 2
    assert any(" -e " in c for c in checkout.make("lint")[1])
