"""Runs a notebook in a kernel of this very interpreter."""

import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from ipykernel.kernelspec import RESOURCES, get_kernel_dict
from jupyter_client import AsyncKernelManager
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager, NoSuchKernel
from nbclient import NotebookClient
from nbclient.exceptions import CellExecutionError, CellTimeoutError, DeadKernelError
from nbformat import NotebookNode
from traitlets import default

NAME = "python3"
DISPLAY_NAME = "Python 3"


class ThisInterpreter(KernelSpecManager):
    """Offers one kernel, `python3`, and it is the running interpreter.

    Jupyter looks in the user's folders, where a `python3` of another environment may lie.
    """

    def find_kernel_specs(self) -> dict[str, str]:
        return {NAME: RESOURCES}

    def get_kernel_spec(self, kernel_name: str) -> KernelSpec:
        if kernel_name != NAME:
            raise NoSuchKernel(kernel_name)
        return KernelSpec(
            resource_dir=RESOURCES, **(get_kernel_dict() | {"display_name": DISPLAY_NAME})
        )


class ThisKernelManager(AsyncKernelManager):
    """Starts kernels of the running interpreter."""

    @default("kernel_spec_manager")
    def _this_interpreter(self) -> KernelSpecManager:
        return ThisInterpreter()


class NotebookError(Exception):
    """A cell that failed. `cell` counts all cells from 1, text included."""

    def __init__(self, name: str, cell: int, error: str) -> None:
        super().__init__(f"{name}, cell {cell}: {error}")
        self.name = name
        self.cell = cell
        self.error = error


def run_notebook(
    notebook: NotebookNode,
    name: str,
    folder: Path,
    *,
    timeout: int | None = None,
    environment: Mapping[str, str] = {},
    on_cell: Callable[[int, int], None] | None = None,
) -> None:
    """Execute every code cell in order and store the outputs in `notebook`, as far as it comes.

    Args:
        notebook: changed in place.
        name: how errors call it.
        folder: working folder of the kernel.
        timeout: seconds a cell may take; None is without limit.
        environment: variables set for the kernel beside those of this process.
        on_cell: called before each cell with its number (from 1) and how many there are.

    Raises:
        NotebookError: a cell raised, took too long or killed the kernel.
    """
    current = 0

    def starts(cell: NotebookNode, cell_index: int) -> None:
        nonlocal current
        current = cell_index + 1
        if on_cell:
            on_cell(current, len(notebook.cells))

    client = NotebookClient(
        notebook,
        kernel_manager_class=ThisKernelManager,
        kernel_name=NAME,
        timeout=timeout,
        record_timing=False,
        coalesce_streams=True,
        on_cell_start=starts,
    )
    # An own profile: the user's start-up files and history stay out of it. What the kernel writes
    # past its cells (warnings of Jupyter, a crash) is told only if it dies.
    with tempfile.TemporaryDirectory() as profile, tempfile.TemporaryFile("w+") as log:
        variables = {**os.environ, "IPYTHONDIR": profile, **environment}
        try:
            client.execute(cwd=str(folder), env=variables, stderr=log)
        except CellExecutionError as error:
            raise NotebookError(name, current, f"{error.ename}: {error.evalue}") from error
        except CellTimeoutError as error:
            raise NotebookError(name, current, f"took more than {timeout} s") from error
        except DeadKernelError as error:
            log.seek(0)
            raise NotebookError(name, current, f"the kernel died\n{log.read()[-2000:]}") from error
