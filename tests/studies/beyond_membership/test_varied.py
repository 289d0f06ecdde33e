from dpsub import DPSGD, audit, audits, crafters, data, models
from studies.beyond_membership import varied


def test_a_figure_has_every_scenario_under_every_training(tmp_path):
    task = data.digits(n_train=30)
    model = models.linear(task)
    specs = {f"η = {rate:g}": DPSGD(1.0, 1.0, 0.5, 4, rate) for rate in (0.1, 1.0)}
    options = {"runs": 5, "seed": 2, "device": "cpu", "progress": False}
    found = varied.made(task, model, specs, crafting_steps=9, observed=2, results=tmp_path, **options)
    assert list(found) == [(label, scenario) for label in specs for scenario in crafters.BY_SCENARIO]
    assert {path.name for path in tmp_path.iterdir()} == {f"eta={r}-S{i}.db" for r in ("0.1", "1") for i in range(2, 6)}
    kept = audits.load_all(tmp_path, label="η = {learning_rate:g}")
    assert all(one.identical(kept[key]) for key, one in found.items())
    label, spec = next(iter(specs.items()))
    alone = audit(task, model, crafters.mislabeled(task, model, spec, seed=2), spec, observe_every=2, **options)
    assert alone.equals(found[label, "S4"])
    assert alone.step.values.tolist() == [2, 4]
