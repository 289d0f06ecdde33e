import itertools
import math

from dpsub.accounting import gdp_epsilon


def test_dp_accountings_error_is_quadratic_in_the_mesh_above_and_linear_below(by_dp_accounting):
    sigma, steps, delta = 25.0, 400, 1e-5
    exact = gdp_epsilon(2 * math.sqrt(steps) / sigma, delta)
    meshes = (4e-2, 2e-2, 1e-2)
    ends = [by_dp_accounting(sigma, 1.0, steps, delta, "substitute", mesh) for mesh in meshes]
    above = [pessimistic - exact for _, pessimistic in ends]
    below = [exact - optimistic for optimistic, _ in ends]
    assert all(3.5 < coarse / fine < 4.5 for coarse, fine in itertools.pairwise(above))
    assert all(0.2 < error / (steps * mesh**2) < 0.5 for error, mesh in zip(above, meshes, strict=True))
    assert all(1.7 < coarse / fine < 2.3 for coarse, fine in itertools.pairwise(below))
    assert all(0.3 < error / (steps * mesh / 2) < 1.5 for error, mesh in zip(below, meshes, strict=True))
