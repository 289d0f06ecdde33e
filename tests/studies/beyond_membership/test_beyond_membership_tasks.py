import numpy as np

from dpsub.data import digits, load_features
from studies.beyond_membership.tasks import features_or_digits


def test_digits_serve_where_there_is_no_file(tmp_path):
    path, x, y = tmp_path / "f.npz", np.arange(60.0).reshape(20, 3), np.arange(20) % 2
    np.savez(path, x_train=x, y_train=y, x_test=x[:4], y_test=y[:4])
    sizes = {"n_train": 8, "n_aux": 6, "seed": 3}
    assert features_or_digits(path, **sizes).fingerprint == load_features(path, **sizes).fingerprint
    assert features_or_digits(path, **sizes, name="small", stand_in_for="ViT").name == "small (stand-in for ViT)"
    assert features_or_digits(None, **sizes).fingerprint == digits(n_train=8, seed=3).fingerprint
