"""The sizes of the sweeps, as (B, D, N)."""

Size = tuple[int, int, int]

# The original design's own size, where launches are what counts, and one where work does.
CENTRES: dict[str, Size] = {"small": (256, 512, 2560), "large": (4096, 512, 40960)}

_BATCHES = tuple(2**k for k in range(6, 15))  # 64 to 16384, ten negatives a query
_DIMS = tuple(2**k for k in range(6, 13))  # 64 to 4096
_NEGATIVES = tuple(4**k for k in range(4, 11))  # 256 to 1,048,576


def batch() -> list[Size]:
    """Over the batch, N = 10 B, D = 512: through both centres."""
    return [(B, 512, 10 * B) for B in _BATCHES]


def dim(centre: str) -> list[Size]:
    """Over the feature dimension, around a centre."""
    B, _, N = CENTRES[centre]
    return [(B, D, N) for D in _DIMS]


def negatives(centre: str) -> list[Size]:
    """Over the number of negatives, around a centre."""
    B, D, own = CENTRES[centre]
    return [(B, D, N) for N in sorted({*_NEGATIVES, own})]


def grid() -> list[Size]:
    """A coarse grid over all three."""
    return [(B, D, N) for B in (256, 4096) for D in (128, 2048) for N in (2560, 40960)]


SWEEPS = ("batch", "dim", "negatives", "grid")


def sweep(name: str, centres: tuple[str, ...] = tuple(CENTRES)) -> list[Size]:
    """The sizes of a sweep in order, each once. Raises ValueError for an unknown one."""
    if name not in SWEEPS:
        raise ValueError(f"sweep={name!r} is not one of {', '.join(SWEEPS)}")
    if name in ("batch", "grid"):
        return batch() if name == "batch" else grid()
    around = dim if name == "dim" else negatives
    return list(dict.fromkeys(size for centre in centres for size in around(centre)))


def landmarks() -> set[Size]:
    """The centres and the ends of the sweeps, where what takes long to prepare is measured."""
    lines = [batch(), *(line(centre) for line in (dim, negatives) for centre in CENTRES)]
    return {*CENTRES.values(), *(line[0] for line in lines), *(line[-1] for line in lines)}
