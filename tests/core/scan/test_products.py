"""Products by every library equal float64, for factors of any strides."""

import pytest
import torch

from rsl_tbptt.core.scan import products

FLOAT = torch.float32


@pytest.fixture(params=["torch", "MKL", "oneDNN"])
def library(request, monkeypatch):
    if request.param != "torch" and not products.has(request.param):
        pytest.skip("this torch lacks it")
    monkeypatch.setattr(products, "library_for", lambda *_: request.param)


def matrix(rows, columns, *, seed, is_transposed=False, margin=0):
    """Return a random matrix; with a margin, a part of the columns of a larger one."""
    generator = torch.Generator().manual_seed(seed)
    shape = (columns, rows + margin) if is_transposed else (rows, columns + margin)
    values = torch.randn(shape, generator=generator)
    return values[:, :rows].t() if is_transposed else values[:, :columns]


@pytest.mark.parametrize("margin", [0, 3])
@pytest.mark.parametrize("is_transposed", [False, True])
def test_products_of_two_matrices(library, is_transposed, margin):
    kind = {"is_transposed": is_transposed, "margin": margin}
    left, right = matrix(70, 33, seed=0, **kind), matrix(33, 40, seed=1, **kind)
    rows = matrix(70, 20, seed=2, **kind)
    found = products.multiply(left, right), products.multiply_columns(left, rows)
    wanted = left.double() @ right.double(), left.double().t() @ rows.double()
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one.double(), other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("kept_in", [FLOAT, torch.float64])
def test_a_product_in_a_given_buffer_has_its_dtype(library, kept_in):
    left, right, out = (
        matrix(70, 33, seed=0),
        matrix(33, 40, seed=1),
        torch.zeros(70, 40).to(kept_in),
    )
    products.multiply(left, right, out=out)
    torch.testing.assert_close(out.double(), left.double() @ right.double(), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("num_envs", [1, 7, 64])
def test_products_of_a_step(library, num_envs):
    factor, rows = matrix(33, 40, seed=0), matrix(num_envs, 33, seed=1)
    out = torch.empty(num_envs, 40)
    multiply_by, factors, takes_out = products.step_product(num_envs, FLOAT, factor)
    product = multiply_by(rows, *factors, **({"out": out} if takes_out else {}))
    wanted = rows.double() @ factor.double()
    torch.testing.assert_close(product.double(), wanted, rtol=1e-5, atol=1e-5)


def test_onednn_multiplies_large_float32_matrices_on_processors_of_amd(monkeypatch):
    monkeypatch.setattr(products, "has", lambda _: True)
    for is_of_amd, large in ((True, "oneDNN"), (False, "MKL")):
        monkeypatch.setattr(products, "_is_of_amd", lambda is_of_amd=is_of_amd: is_of_amd)
        assert products.library_for(FLOAT, 2**20) == large
        assert products.library_for(FLOAT, 2**20 - 1) == "MKL"
        assert products.library_for(torch.float64, 2**30) == "torch"
        assert products.library_for(torch.bfloat16, 2**30) == "torch"
    monkeypatch.setattr(products, "has", lambda _: False)
    assert products.library_for(FLOAT, 2**20) == "torch"
