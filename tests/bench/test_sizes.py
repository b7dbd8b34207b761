import pytest

from infonce_kernels.bench import sizes


def test_sweeps_go_where_the_record_must():
    assert [B for B, _, _ in sizes.batch()] == [64, 128, 256, 512, 1024, 2048, 4096, 8192, 16384]
    assert all(D == 512 and N == 10 * B for B, D, N in sizes.batch())
    for centre, (B, D, N) in {"small": (256, 512, 2560), "large": (4096, 512, 40960)}.items():
        over_d, over_n = sizes.dim(centre), sizes.negatives(centre)
        assert {(b, n) for b, _, n in over_d} == {(B, N)}
        assert [d for _, d, _ in over_d] == [64, 128, 256, 512, 1024, 2048, 4096]
        assert {(b, d) for b, d, _ in over_n} == {(B, D)}
        assert [over_n[0][2], over_n[-1][2]] == [256, 1048576]
        assert (B, D, N) in over_d and (B, D, N) in over_n and (B, D, N) in sizes.batch()


def test_a_sweep_has_each_size_once():
    for name in sizes.SWEEPS:
        swept = sizes.sweep(name)
        assert len(swept) == len(set(swept)) > 1


def test_a_sweep_can_keep_to_one_centre():
    assert {B for B, _, _ in sizes.sweep("dim", ("small",))} == {256}


def test_an_unknown_sweep_is_named_with_those_there_are():
    with pytest.raises(ValueError, match="sweep='depth' is not one of batch, dim, negatives, grid"):
        sizes.sweep("depth")


def test_landmarks_are_the_centres_and_the_ends():
    assert sizes.landmarks() == {
        (256, 512, 2560), (4096, 512, 40960), (64, 512, 640), (16384, 512, 163840),
        (256, 64, 2560), (256, 4096, 2560), (4096, 64, 40960), (4096, 4096, 40960),
        (256, 512, 256), (256, 512, 1048576), (4096, 512, 256), (4096, 512, 1048576),
    }  # fmt: skip
