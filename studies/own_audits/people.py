"""A made-up table of patients, as a hospital keeps it."""

import numpy as np
import pandas as pd


def patients(n, seed):
    """A row for each patient: measurements, categories, and whether they have a heart disease."""
    rng = np.random.default_rng(seed)
    age, smoker = rng.integers(18, 90, n), rng.random(n) < 0.25
    hiv = rng.choice(["negative", "positive"], n, p=[0.95, 0.05])
    pressure = (110 + 0.4 * age + 8 * smoker + rng.normal(0, 12, n)).round()
    cholesterol = (4 + 0.015 * age + rng.normal(0, 0.9, n)).round(1)
    risk = 0.08 * age + 0.05 * pressure + 0.7 * cholesterol + 1.2 * smoker + 0.8 * (hiv == "positive") - 16
    return pd.DataFrame(
        {
            "age": age,
            "sex": rng.choice(["f", "m"], n),
            "smoker": smoker,
            "hiv": hiv,
            "pressure": pressure,
            "cholesterol": cholesterol,
            "heart disease": rng.random(n) < 1 / (1 + np.exp(-risk)),
        },
        index=[f"patient {number}" for number in range(n)],
    )
