import numpy as np
import pytest
from torch.nn.functional import cosine_similarity

from dpsub.crafters.reference_model import compare_gradients, reference


@pytest.mark.parametrize("name", ["linear", "mlp", "convnet"])
def test_geometry_is_that_of_the_gradients_one_by_one(attacked, name, spec, gradient_by_hand):
    task, model = attacked[name]
    found = reference(task, model, spec(sample_rate=0.5), seed=1, target=None)
    target = gradient_by_hand(found.module, *found.z)
    gradients = [gradient_by_hand(found.module, x, int(y)) for x, y in zip(task.x_aux, task.y_aux, strict=True)]
    cosine, ratio, norm = compare_gradients(found, task.x_aux, task.y_aux)
    assert norm == pytest.approx(float(target.norm()))
    np.testing.assert_allclose(cosine, [float(cosine_similarity(target, g, dim=0)) for g in gradients], atol=1e-9)
    np.testing.assert_allclose(ratio, [float(g.norm() / target.norm()) for g in gradients], rtol=1e-9)
