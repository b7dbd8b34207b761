"""Inputs of the lessons: the original benchmark's, and real images."""

import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn.functional import normalize


def original() -> tuple[Tensor, Tensor, Tensor]:
    """The original design's own sizes: B = 256, D = 512, N = 2560 random rows of norm 1.

    Returns query (B, D), positive (B, D) and negatives (N, D), float32.
    """
    generator = torch.Generator().manual_seed(0)
    return tuple(
        normalize(torch.randn(rows, 512, generator=generator), dim=1) for rows in (256, 256, 2560)
    )


def digits() -> tuple[Tensor, Tensor, Tensor]:
    """scikit-learn's handwritten digits, 8 x 8 pixels as rows of D = 64, mean removed, norm 1.

    Returns query (256, D): images; positive (256, D): the same images, moved right by half a pixel;
    negatives (1541, D): the other images.
    """
    images = torch.tensor(load_digits().images, dtype=torch.float32)
    moved = (images + torch.nn.functional.pad(images, (1, 0))[:, :, :-1]) / 2
    rows, moved_rows = (
        normalize(x.flatten(1) - x.mean((1, 2)).unsqueeze(1)) for x in (images, moved)
    )
    return rows[:256], moved_rows[:256], rows[256:]
