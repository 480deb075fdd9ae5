"""Compressed all-reduces of numpy arrays."""

import pytest
from ranks import PRELUDE, TWO_NODES, check


@pytest.mark.parametrize("format", ["int8", "int4", "int8:stochastic", "onebit", "topk:0.1", "threshold:0.5", "powersgd:2"])
def test_sums_and_residuals_add_up_to_the_exact_sums(format: str) -> None:
    check(
        PRELUDE
        + f"""
format = "{format}"
"""
        + """
shapes = [(16, 32), (40,)]
compressor = unisono.Compressor(comm, shapes, format)
true, sent = np.zeros(16 * 32 + 40), np.zeros(16 * 32 + 40)
for step in range(20):
    own = [np.random.default_rng(100 * step + other).normal(size=true.size).astype("f4") for other in range(size)]
    true += sum(own)
    array = own[rank].copy()
    assert compressor.all_reduce(array) is array and compressor.was_finite
    everyone = np.zeros((size, array.size), "f4")
    everyone[rank] = array
    assert (comm.all_gather(everyone) == array).all(), "results differ between ranks"
    sent += array
    if step == 10:
        state = compressor.state_dict()
        compressor = unisono.Compressor(comm, shapes, format)
        compressor.load_state_dict(state)
left = comm.all_reduce(compressor.state_dict()["residual"].astype("f8"))
np.testing.assert_allclose(sent + left, true, atol=1e-3, err_msg="sums and residuals differ from the exact sums")
for wrong in (np.ones(5, "f4"), np.ones(true.size)):
    refused(ValueError, lambda: compressor.all_reduce(wrong), "the compressor sums 552 f32")
""",
        2,
        **TWO_NODES,
    )


def test_unknown_formats_and_huge_tensors_are_refused() -> None:
    check(
        PRELUDE
        + """
for shape, format, expected in (
    ((3,), "int7", "int7"),
    ((1 << 40, 1 << 40), "int8", "exceed the address space"),
    ((1 << 32,), "topk:0.1", "32-bit indices"),
    ((1 << 32,), "threshold:1", "32-bit indices"),
):
    refused(ValueError, lambda: unisono.Compressor(comm, [shape], format), expected)
"""
    )
