"""What eager PyTorch does behind one line: every operation, and the bytes it reads and writes."""

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Operations(TorchDispatchMode):
    """Context that lists the operations run inside it; views, which move nothing, are left out.

    Each row is (name, bytes read, bytes written). Printed, it is a table with its totals.
    """

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[str, int, int]] = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        read = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
        storages = {x.untyped_storage()._cdata for x in read}
        written = [x for x in tree_leaves(result) if isinstance(x, Tensor)]
        if any(x.untyped_storage()._cdata not in storages for x in written):
            self.rows.append(
                (func._schema.name.removeprefix("aten::"), _bytes(read), _bytes(written))
            )
        return result

    def __repr__(self) -> str:
        rows = [*self.rows, ("total", sum(r[1] for r in self.rows), sum(r[2] for r in self.rows))]
        lines = [f"{'operation':28}{'MB read':>10}{'MB written':>12}"]
        lines += [
            f"{name:28}{read / 1e6:10.2f}{written / 1e6:12.2f}" for name, read, written in rows
        ]
        return "\n".join(lines)


def _bytes(tensors: list[Tensor]) -> int:
    return sum(x.numel() * x.element_size() for x in tensors)


def of_model(query: Tensor, positive: Tensor, negatives: Tensor) -> Operations:
    """The operations of the original model's forward pass on these operands."""
    from infonce_kernels.reference import Model

    with torch.no_grad(), Operations() as operations:
        Model()(query, positive, negatives)
    return operations
