import copy
from pathlib import Path

import nbformat
import pytest
from nbformat import NotebookNode

from infonce_kernels.lessons.sync import synchronise

HEADER = """---
jupytext:
  text_representation:
    extension: .md
    format_name: myst
kernelspec:
  display_name: Python 3
  language: python
  name: python3
---

"""

# One white pixel.
PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAAAAAA6fptVAAAACklEQVR4nGP4DwABAQEAsTj2FAAAAABJRU5ErkJggg=="

# It imports nothing slow, since many tests execute it; the committed lessons test the real thing.
LESSON = f"""{HEADER}# A lesson about $x^2$

```{{code-cell}} ipython3
:tags: [setup]

def check_square(square):
    print("passed" if square(3) == 9 else "not yet: the square of 3 is 9")
```

```{{code-cell}} ipython3
:tags: [nbval-check-output]

print("loss 7.8512, error 3.1e-07, ok")
```

```{{code-cell}} ipython3
import sys
from base64 import b64decode
from IPython.display import Image

print("compiling", file=sys.stderr)
Image(b64decode("{PNG}"))
```

Write `square`.

```{{code-cell}} ipython3
:tags: [exercise]

def square(x):
    return 2 * x
```

```{{code-cell}} ipython3
:tags: [check, nbval-check-output]

check_square(square)
```

```{{code-cell}} ipython3
---
jupyter:
  source_hidden: true
tags: [solution]
---
def square(x):
    return x * x
```
"""


@pytest.fixture(scope="session")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A lesson that is as it should be, and the notebook that `make sync` makes of it."""
    folder = tmp_path_factory.mktemp("lesson with blanks")
    source, target = folder / "01_sample.md", folder / "01_sample.ipynb"
    source.write_text(LESSON, "utf-8")
    assert synchronise(source, target)
    return source, target


@pytest.fixture
def lesson() -> str:
    return LESSON


@pytest.fixture
def notebook(pair: tuple[Path, Path]) -> NotebookNode:
    """The good notebook, free to be spoilt."""
    return copy.deepcopy(nbformat.read(pair[1], as_version=4))


@pytest.fixture
def foreign_kernel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel called python3 that cannot start lies in the user's Jupyter folder."""
    folder = tmp_path / "jupyter" / "kernels" / "python3"
    folder.mkdir(parents=True)
    (folder / "kernel.json").write_text(
        '{"argv": ["/nonexistent/python"], "display_name": "Mine", "language": "python"}'
    )
    monkeypatch.setenv("JUPYTER_PATH", str(tmp_path / "jupyter"))
