"""from_frame, on a table like people have: texts, categories, booleans, codes, and numbers on several scales."""

import numpy as np
import pandas as pd
import pytest

from dpsub.data import from_frame


def patients(n=200, seed=0):
    rng = np.random.default_rng(seed)
    frame = pd.DataFrame(
        {
            "age": rng.integers(20, 90, n),
            "job": rng.choice(["clerk", "nurse", "other"], n),
            "smoker": rng.random(n) < 0.3,
            "hiv": (rng.random(n) < 0.2).astype(int),
            "diagnosis": pd.Categorical(rng.choice([402, 250], n), categories=[250, 402, 999]),
            "visits": pd.array(rng.integers(0, 5, n), dtype="Int64"),
            "income": rng.lognormal(10, 1, n),
            "country": 1,
            "ill": rng.choice(["yes", "no"], n),
        },
        index=[f"patient {i}" for i in range(n)],
    )
    return frame


def by_hand(rows, public):
    """A loop over rows and columns."""
    found = []
    for _, row in rows.iterrows():
        features = []
        for name in ("age", "job", "smoker", "hiv", "diagnosis", "visits", "income", "country"):
            if name == "job":
                features += [float(row[name] == one) for one in ("clerk", "nurse", "other")]
            elif name == "diagnosis":
                features += [float(row[name] == one) for one in (250, 402, 999)]
            elif name in ("smoker", "hiv"):
                features.append(float(row[name]))
            else:
                numbers = [float(one) for one in public[name]]
                mean = sum(numbers) / len(numbers)
                spread = (sum((one - mean) ** 2 for one in numbers) / len(numbers)) ** 0.5
                features.append((float(row[name]) - mean) / (spread or 1.0))
        found.append(features)
    return np.array(found)


def test_a_frame_becomes_what_a_loop_makes_of_it():
    private, public, held_out = (patients(seed=seed) for seed in range(3))
    task = from_frame(private, label="ill", sensitive="job", aux=public, test=held_out, name="patients")
    for rows, x, y in (
        (private, task.x_train, task.y_train),
        (public, task.x_aux, task.y_aux),
        (held_out, task.x_test, task.y_test),
    ):
        np.testing.assert_allclose(x, by_hand(rows, public), rtol=1e-6, atol=1e-6)
        assert (y == (rows.ill == "yes")).all()
    assert (task.num_classes, task.name, task.sensitive) == (2, "patients", "job")
    assert task.columns["diagnosis"].places == [6, 7, 8]
    assert list(task.rows) == list(private.index)


def test_rows_are_drawn_once_each_and_found_again():
    frame = patients()
    task = from_frame(frame, label="ill", aux=0.2, test=0.3, seed=4)
    assert [len(y) for y in (task.y_train, task.y_aux, task.y_test)] == [100, 40, 60]
    assert list(task.rows) == [one for one in frame.index if one in set(task.rows)]
    age = task.columns["age"]
    ages = task.x_train[:, age.places[0]] * age.scale + age.centre
    np.testing.assert_allclose(ages, frame.loc[task.rows, "age"], rtol=1e-5)
    together = np.concatenate([task.x_train, task.x_aux, task.x_test])[:, task.columns["income"].places[0]]
    assert len(np.unique(together)) == len(frame)
    assert from_frame(frame, label="ill", aux=0.2, test=0.3, seed=5).fingerprint != task.fingerprint
    assert len(from_frame(frame, label="ill", test=0).y_test) == 0


def test_what_a_private_row_holds_changes_its_own_features_alone():
    frame = patients()
    task = from_frame(frame, label="ill")
    changed = frame.copy()
    changed.loc[task.rows[7], ["age", "income", "visits"]] = [10_000, 1e9, 4_000]
    changed.loc[task.rows[7], "job"] = "clerk" if frame.job[task.rows[7]] != "clerk" else "nurse"
    other = from_frame(changed, label="ill")
    assert np.flatnonzero((task.x_train != other.x_train).any(axis=1)).tolist() == [7]
    np.testing.assert_array_equal(task.x_aux, other.x_aux)
    np.testing.assert_array_equal(task.x_test, other.x_test)


def test_auxiliary_rows_like_private_ones_scale_but_are_left_out():
    frame = patients()
    task = from_frame(frame, label="ill", aux=frame.iloc[:50], test=0)
    assert task.x_aux.shape == (0, task.x_train.shape[1])
    np.testing.assert_allclose(task.x_train[:50, 0].mean(), 0, atol=1e-6)


def with_a(value, name):
    frame = patients().astype({name: object})
    frame.iloc[3, frame.columns.get_loc(name)] = value
    return frame


PUBLIC = patients(seed=1)


@pytest.mark.parametrize(
    ("frame", "message"),
    [
        (
            with_a(None, "job"),
            r"column 'job' must hold .* got None \(1 of 200\): drop such rows, or the column if",
        ),
        (with_a(np.nan, "income").astype({"income": float}), "column 'income' must hold finite numbers .* got nan"),
        (with_a(-np.inf, "income").astype({"income": float}), "column 'income' must hold finite numbers .* got -inf"),
        (patients().assign(visits=patients().visits.where(patients().age > 30)), "column 'visits' .* got <NA>"),
        (
            with_a("spy", "job"),
            r"column 'job' must .* categories that auxiliary rows have, got 'spy' \(1 of 200\)",
        ),
        (with_a("maybe", "ill"), "column 'ill' must .* got 'maybe'"),
        (patients().drop(columns="ill"), "label must be one of 'age', 'job', .* got 'ill'"),
    ],
)
def test_what_private_rows_must_not_decide_is_refused(frame, message):
    with pytest.raises(ValueError, match=message):
        from_frame(frame, label="ill", aux=PUBLIC, test=0)


def test_a_dtype_says_which_categories_are_public():
    jobs = pd.CategoricalDtype(["clerk", "nurse", "other", "spy"])
    task = from_frame(with_a("spy", "job").astype({"job": jobs}), label="ill", aux=PUBLIC, test=0)
    assert task.x_train[3, task.columns["job"].places].tolist() == [0, 0, 0, 1]


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"sensitive": "jobs"}, "sensitive must be one of 'age', .*: did you mean 'job'?"),
        ({"sensitive": "ill"}, "sensitive must be one of 'age', "),
        ({"aux": 0}, "aux must be >= 0.005 and < 1, got 0"),
        ({"test": 1.5}, "test must be >= 0 and < 1, got 1.5"),
    ],
)
def test_bad_arguments_are_named(asked, message):
    with pytest.raises(ValueError, match=message):
        from_frame(patients(), label="ill", **asked)
