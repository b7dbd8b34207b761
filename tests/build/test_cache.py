import json
import multiprocessing
import os
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from multiprocessing.context import ForkProcess as Process
from multiprocessing.synchronize import Event
from pathlib import Path

import pytest

from infonce_kernels.build import BuildError, cache

KEY = "a" + "0" * 63
FORK = multiprocessing.get_context("fork")  # PyTorch is loaded already


def entries(root: Path) -> list[str]:
    """What the cache holds besides its lock files."""
    return sorted(path.name for path in root.iterdir() if path.name != "locks")


def writer(text: str) -> Callable[[Path], None]:
    return lambda staging: (staging / "result").write_text(text) and None


def hold(building: Event) -> None:
    """A builder that does not end by itself."""

    def build(staging: Path) -> None:
        (staging / "half").write_text("half a library")
        building.set()
        time.sleep(60)

    cache.entry("kernel", KEY, "kernel for a test", build)


@pytest.fixture
def holder() -> Iterator[Process]:
    """Another process, in the middle of building `kernel`."""
    building = FORK.Event()
    process = FORK.Process(target=hold, args=(building,))
    process.start()
    assert building.wait(10)
    yield process
    process.kill()
    process.join()


def test_an_entry_is_built_once(empty_cache: Path) -> None:
    folder = cache.entry("kernel", KEY, "kernel for a test", writer("first"))
    again = cache.entry("kernel", KEY, "kernel for a test", writer("second"))
    assert folder == again == empty_cache / f"kernel-{KEY}"
    assert (folder / "result").read_text() == "first"


@pytest.mark.parametrize(
    "name", ["../../escape", "a/b", "x" * 300, "\N{GREEK SMALL LETTER TAU}", ".building-x", ".."]
)
def test_any_name_makes_a_folder_of_the_cache(empty_cache: Path, name: str) -> None:
    folder = cache.entry(name, KEY, name, writer("right"))
    assert folder.parent == empty_cache and folder.name.isascii() and len(folder.name) <= 105
    cache.entry("other", KEY, "other for a test", writer("other"))  # sweeps what builders left
    assert (folder / "result").read_text() == "right"


@pytest.mark.parametrize("damage", ["removed", "cut off", "its list removed", "its list cut off"])
def test_a_damaged_entry_is_built_anew(empty_cache: Path, damage: str) -> None:
    folder = cache.entry("kernel", KEY, "kernel for a test", writer("first"))
    path = folder / ("sizes.json" if "list" in damage else "result")
    path.unlink() if "removed" in damage else os.truncate(path, 3)
    folder = cache.entry("kernel", KEY, "kernel for a test", writer("second"))
    assert (folder / "result").read_text() == "second"
    assert cache.entry("kernel", KEY, "kernel for a test", writer("third")) == folder
    assert (folder / "result").read_text() == "second"


def test_an_entry_that_does_not_load_is_built_anew_once(empty_cache: Path) -> None:
    built = []

    def build(staging: Path) -> None:
        built.append(staging)
        (staging / "result").write_text(f"build {len(built)}")

    def load(folder: Path) -> str:
        text = (folder / "result").read_text()
        if text in refused:
            raise OSError(f"refused {text}")
        return text

    refused = {"build 1"}
    assert cache.use("kernel", KEY, "kernel for a test", build, load) == "build 2"
    refused = {"build 2", "build 3"}
    with pytest.raises(OSError, match="refused build 3"):
        cache.use("kernel", KEY, "kernel for a test", build, load)
    assert len(built) == 3


def test_a_failed_build_leaves_nothing_and_the_next_works(empty_cache: Path) -> None:
    def fail(staging: Path) -> None:
        (staging / "half").write_text("half a library")
        raise BuildError("no")

    with pytest.raises(BuildError, match="no"):
        cache.entry("kernel", KEY, "kernel for a test", fail)
    assert entries(empty_cache) == []
    cache.entry("kernel", KEY, "kernel for a test", writer("right"))
    assert entries(empty_cache) == [f"kernel-{KEY}"]


@pytest.mark.parametrize(
    ("variables", "expected"),
    [
        ({"TORCH_EXTENSIONS_DIR": "ext dir", "XDG_CACHE_HOME": "xdg"}, "ext dir/infonce_kernels"),
        ({"XDG_CACHE_HOME": "xdg"}, "xdg/infonce_kernels"),
        ({"HOME": "home"}, "home/.cache/infonce_kernels"),
    ],
)
def test_the_environment_chooses_the_folder(
    variables: dict[str, str], expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("TORCH_EXTENSIONS_DIR", "XDG_CACHE_HOME"):
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, str(tmp_path / value))
    assert cache.root() == tmp_path / expected
    assert cache.root().is_dir()


def test_a_tilde_is_the_users_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", "~/x")
    assert cache.root() == tmp_path / "x" / "infonce_kernels"


def test_an_unwritable_folder_falls_back_with_one_warning(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()  # no folder can be made below it, not even by root
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "file" / "cache"))
    monkeypatch.setattr(cache.tempfile, "gettempdir", lambda: str(tmp_path))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        first, second = cache.root(), cache.root()
    assert first == second == tmp_path / f"infonce_kernels-{os.getuid()}"
    assert first.stat().st_mode & 0o777 == 0o700
    assert [w.category for w in caught] == [UserWarning]
    assert "TORCH_EXTENSIONS_DIR" in str(caught[0].message)


def test_a_fallback_folder_of_someone_else_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "theirs").mkdir()
    (tmp_path / f"infonce_kernels-{os.getuid()}").symlink_to(tmp_path / "theirs")
    monkeypatch.setenv("TORCH_EXTENSIONS_DIR", str(tmp_path / "file" / "other"))
    monkeypatch.setattr(cache.tempfile, "gettempdir", lambda: str(tmp_path))
    with pytest.raises(BuildError, match="belongs to someone else"):
        cache.root()


def test_the_builder_that_is_waited_for_is_named(
    empty_cache: Path, holder: Process, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache, "LOCK_TIMEOUT_S", 0.2)
    expected = f"held by process {holder.pid} on .* which builds kernel for a test since 20"
    with pytest.raises(BuildError, match=expected):
        cache.entry("other", KEY, "other for a test", writer("never"))
    assert not (empty_cache / f"other-{KEY}").exists()


def test_a_line_says_whom_one_waits_for(
    empty_cache: Path,
    holder: Process,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("INFONCE_KERNELS_QUIET", raising=False)
    monkeypatch.setattr(cache, "_PATIENCE_S", 0.1)
    threading.Timer(0.5, holder.kill).start()
    cache.entry("kernel", KEY, "kernel for a test", writer("right"))
    first, second = capsys.readouterr().err.splitlines()
    assert first.startswith(f"waiting for process {holder.pid} on ")
    assert second.startswith("building kernel for a test ... ")


def test_a_killed_builder_is_succeeded_at_once(empty_cache: Path, holder: Process) -> None:
    assert entries(empty_cache) == [f".building-kernel-{KEY}"]
    holder.kill()  # SIGKILL: nothing of it can tidy up
    holder.join()
    start = time.monotonic()
    # Another kernel under the same lock: the dead one's half-built folder goes too.
    cache.entry("other", KEY, "other for a test", writer("right"))
    assert time.monotonic() - start < 2
    assert entries(empty_cache) == [f"other-{KEY}"]


def test_four_processes_build_once(empty_cache: Path, tmp_path: Path) -> None:
    results = FORK.Queue()

    def build(staging: Path) -> None:
        with (tmp_path / "log").open("a") as log:
            log.write("built\n")
        time.sleep(0.3)
        (staging / "result").write_text("the result")

    def use() -> None:
        folder = cache.entry("kernel", KEY, "kernel for a test", build)
        results.put((folder / "result").read_text())

    processes = [FORK.Process(target=use) for _ in range(4)]
    for process in processes:
        process.start()
    assert [results.get(timeout=30) for _ in processes] == ["the result"] * 4
    for process in processes:
        process.join()
    assert (tmp_path / "log").read_text() == "built\n"


def test_threads_of_one_process_build_once(empty_cache: Path) -> None:
    built = []

    def build(staging: Path) -> None:
        built.append(staging)
        time.sleep(0.1)

    def entry() -> None:
        cache.entry("kernel", KEY, "kernel for a test", build)

    threads = [threading.Thread(target=entry) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(built) == 1


def test_a_fork_does_not_release_the_parents_lock(empty_cache: Path) -> None:
    errors = FORK.Queue()

    def contend() -> None:
        cache.LOCK_TIMEOUT_S = 0.2
        try:
            cache.entry("other", KEY, "other for a test", writer("never"))
        except BuildError as error:
            errors.put(str(error))

    def build(staging: Path) -> None:
        for target in (lambda: None, contend):  # the first ends, and its copies of files close
            process = FORK.Process(target=target)
            process.start()
            process.join()

    cache.entry("kernel", KEY, "kernel for a test", build)
    assert f"held by process {os.getpid()}" in errors.get(timeout=10)


def test_a_forked_child_builds_for_itself(empty_cache: Path) -> None:
    cache.entry("parent", KEY, "parent for a test", writer("parent"))

    def build_in_child() -> None:
        cache.entry("child", KEY, "child for a test", writer("child"))

    process = FORK.Process(target=build_in_child)
    process.start()
    process.join(timeout=30)
    assert process.exitcode == 0
    assert entries(empty_cache) == [f"child-{KEY}", f"parent-{KEY}"]


def test_the_holders_record_is_gone_when_nobody_holds(empty_cache: Path) -> None:
    records = []

    def build(staging: Path) -> None:
        records.append(json.loads((empty_cache / "locks" / "a.holder").read_text()))

    cache.entry("kernel", KEY, "kernel for a test", build)
    assert records[0]["pid"] == os.getpid()
    assert list((empty_cache / "locks").glob("*.holder")) == []
