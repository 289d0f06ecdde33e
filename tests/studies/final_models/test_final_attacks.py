"""What attacks show of final models, and how it keeps that."""

import inspect
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import presets
import pytest
from scipy.stats import beta, norm

import dpsub
from dpsub import distinguishers, findings
from dpsub.accounting import gdp_epsilon
from studies.final_models import attacks, figures
from studies.final_models import crafting_curve as curves
from studies.final_models.audits import SIZES, by_record, grid, made_for, trained
from studies.final_models.distillation import distilled
from studies.trainings import DELTA

ROOT = Path(__file__).parents[3]
SMALL = {"n_train": 30, "n_aux": 60, "steps": 4, "runs": 160}


@pytest.fixture(scope="module")
def cell():
    return grid("digits", **SMALL)[0]


@pytest.fixture(scope="module")
def models(cell, tmp_path_factory):
    return trained(cell, tmp_path_factory.mktemp("models"), progress=False)


@pytest.fixture(scope="module")
def rows(cell, models):
    return attacks.evaluated(cell, models, size=80, ways=tuple(attacks.WAYS), margins=(0.05,), boxes=1)


def test_the_papers_rule_bounds_each_rate_at_95_percent():
    scores, bits = np.arange(200.0), np.repeat([1, 0], 100)
    how = attacks.WAYS["first version"]
    found = attacks.shown(scores, bits, how.rule, how.alpha)
    upper = beta.ppf(0.95, 1, 100)
    assert found["bound"] == pytest.approx(gdp_epsilon(-2 * norm.ppf(upper), DELTA), rel=1e-6)
    assert not found["valid"]


@pytest.mark.parametrize("epsilon", [1.0, 10.0])
def test_a_perfect_score_of_many_models_shows_what_epsilon_allows(epsilon):
    found = attacks.perfect(epsilon, models=20_000, draws=20)
    assert found.mean() == pytest.approx(epsilon, rel=0.05)
    assert found.std() < 0.2


def test_rows_are_of_each_audit_attack_and_way(rows):
    assert not rows.duplicated(["audit", "box", "way", "attack", "margin"]).any()
    counts = rows.groupby(["box", "way"]).size()
    assert counts["white", "all models"] == 2
    assert counts["white", "second version"] == counts["white", "held out, second crafting"] == 2 * 5
    assert counts["white", "first version"] == counts["white", "held out"] == counts["white", "folds"] == 2 * 6
    assert counts["black"].to_dict() == {"first version": 2, attacks.BEST_STEP: 2, "held out": 2}
    judged = rows.groupby("way").judged.agg(["min", "max"])
    assert judged.loc["first version"].tolist() == [80, 80]
    assert judged.loc["held out"].tolist() == [40, 40]
    assert judged.loc["folds"].max() < 80


def test_held_out_rows_say_how_far_the_sample_is_ahead_of_the_canary(rows):
    held_out = rows[rows.way.isin(["second version", "held out", "held out, second crafting"]) & (rows.box == "white")]
    assert held_out.ahead.notna().all()
    assert (held_out[held_out.attack == "canary"].ahead == 0).all()
    assert (held_out.ahead_low <= held_out.ahead).all()
    assert (held_out.ahead <= held_out.ahead_high).all()
    assert rows[rows.way.isin(["first version", "folds", "all models"])].ahead.isna().all()


def test_bounds_are_marked_valid_for_models_that_nothing_was_learned_from(rows):
    assert set(rows[rows.valid].way) == {"all models", "held out", "held out, second crafting", "folds"}
    assert set(rows[~rows.valid].way) == {"first version", attacks.BEST_STEP, "second version"}


def test_samples_start_at_the_canary_clamped_and_ask_about_both_labels_under_substitution(cell):
    for name, other in (("ClipBKD", "add_remove"), ("ClipBKD", "substitute"), ("blank", "substitute")):
        _, _, pair = made_for(cell._replace(canary=name, adjacency=other))
        tried = {named["attack"]: by for _, by, named in attacks.attempts(pair, ["first version"], ())}
        two = {f"{loss}, two labels" for loss in attacks.LOSSES} if other == "substitute" else set()
        assert set(tried) == {"canary", *attacks.LOSSES} | two
        np.testing.assert_array_equal(tried["ade"].start.x, np.clip(pair.z.x, 0, 1))
        assert tried["ade"].y_prime is None
        for one in two:
            assert (tried[one].start.y, tried[one].y_prime) == (pair.z.y, pair.z_prime.y)


def test_a_row_is_what_distinguish_shows_of_that_audit(cell, models, rows):
    _, network, pair = made_for(cell)
    by = distinguishers.AdversarialSamples(pair.z, loss="ade", steps=10, learning_rate=0.05, bounds=(0, 1))
    second = models.isel(run=slice(80, 160))
    scores = dpsub.distinguish(second, network, by, protocol="in_sample", progress=False)
    [row] = figures.chosen(rows, audit=1, way="first version", attack="ade", margin=0.2).to_dict("records")
    assert row["separation"] == pytest.approx(findings.d_prime(scores.score, scores.bit))


def test_a_box_shows_nothing_of_the_models_that_are_judged_before_they_are(cell, models):
    """The held-out scores do not change if the judged models' surrogates do."""
    records, network, pair = made_for(cell)
    learned = attacks.surrogates(cell, records, network, pair, models)
    scores, bits = attacks.boxed(network, pair, models, learned, "held out", "ade")
    changed = learned.copy()
    changed[80:] += 1
    other, _ = attacks.boxed(network, pair, models, changed, "held out", "ade")
    np.testing.assert_array_equal(scores, other)
    np.testing.assert_array_equal(bits, models.bit.values[80:])
    whole, _ = attacks.boxed(network, pair, models, learned, "first version", "ade")
    assert len(whole) == 160


def test_the_best_step_is_that_of_samples_crafted_for_fewer_steps(cell, models):
    records, network, pair = made_for(cell)
    learned, bits = attacks.surrogates(cell, records, network, pair, models), models.bit.values
    by = attacks.attack("ade", pair, 1, rate=0.02)
    bounds = []
    for steps in range(1, 11):
        sample = replace(by, steps=steps).learn(network, learned, bits)
        bounds.append(attacks.shown(sample.scores(network, models.weights.values), bits, "best", 0.1)["bound"])
    assert attacks.best_step(network, pair, models, learned, "ade")["bound"] == pytest.approx(max(bounds))


def test_tables_of_other_seeds_are_further_audits_of_the_same_cell(cell, models, rows, tmp_path):
    for seed in (0, 3):
        again = cell._replace(seed=seed)
        attacks.keep(rows[rows.audit == 0], again, [models], tmp_path / f"{again.name}.csv")
    read, about = attacks.kept(tmp_path)
    assert set(about) == {cell.name, f"{cell.name}-seed3"}
    assert set(read.cell) == {cell.name}
    assert set(read.audit) == {0, 3}
    name = f"{figures.key(cell.name)}_held_ade"
    alone, all_of_them = (figures.named(part[part.models == 80]) for part in (read[read.audit == 0], read))
    assert len(alone[f"{name}_ahead"]) == 1
    assert alone[f"{name}_ahead_low"] <= alone[f"{name}_ahead"][0] <= alone[f"{name}_ahead_high"]
    assert len(all_of_them[f"{name}_ahead"]) == read.audit.nunique()
    assert f"{name}_ahead_low" not in all_of_them, "an interval over the models of one audit"


def test_executions_draw_records_start_and_noise_anew(cell, tmp_path):
    cell = cell._replace(runs=256)
    rows, audited = attacks.executed(cell, 3, folder=tmp_path, progress=False)
    assert rows.groupby("audit").size().tolist() == [32, 32, 32]
    for seed, one in enumerate(audited):
        records, network, pair = made_for(cell._replace(seed=seed))
        assert one.sizes["run"] == 256
        assert one.task_fingerprint == records.fingerprint
        [alone] = figures.chosen(rows, audit=seed, way="all models").to_dict("records")
        assert alone["separation"] == pytest.approx(findings.d_prime(one.score[:, -1], one.bit))
        own = dpsub.distinguish(one, network, distinguishers.Canary(pair), protocol="in_sample", progress=False)
        np.testing.assert_allclose(own.score, one.score[:, -1], rtol=1e-4, atol=1e-5)
    assert len({one.task_fingerprint for one in audited}) == len({one.model for one in audited}) == 3
    attacks.keep(rows, cell, audited, tmp_path / f"{cell.name}.csv")
    read, about = attacks.kept(tmp_path)
    assert set(read.audit) == {0, 1, 2}
    assert about[cell.name]["models"] == 3 * 256
    assert about[cell.name]["wall_seconds"] == pytest.approx(sum(one.wall_seconds for one in audited))


def test_tables_are_kept_with_how_their_models_were_made(cell, models, rows, tmp_path):
    attacks.keep(rows, cell, [models], tmp_path / f"{cell.name}.csv")
    read, about = attacks.kept(tmp_path)
    pd.testing.assert_frame_equal(read[rows.columns], rows, check_dtype=False, atol=1e-5)
    assert (read.theory == 10).all()
    assert about[cell.name]["cell"] == cell._asdict()
    assert about[cell.name]["models"] == 160
    assert {"device", "commit", "last_written", "version_torch", "evaluated"} <= set(about[cell.name])


def test_audits_at_the_papers_step_of_a_record_are_kept_as_data_of_their_own(cell, models, rows, tmp_path):
    for one in (cell, by_record([cell])[0]):
        attacks.keep(rows, one, [models], tmp_path / f"{one.name}.csv")
    read, _ = attacks.kept(tmp_path)
    assert sorted(set(read.data)) == ["digits", f"digits{attacks.BY_RECORD}"]
    assert set(figures.chosen(read, data="digits").learning_rate) == {4.0}
    both = figures.of_figure(read.assign(models=256), 3)
    assert set(both.data) == set(read.data), "a figure has the largest rate of each"


def test_presets_train_surrogates_as_published_and_as_what_is_kept():
    def recipe(preset):
        given = presets.sections(ROOT / "notebooks", preset)["final_models"]
        names = {"epochs": "epochs", "batch": "batch_size", "rate": "learning_rate"}
        return {name: given[f"surrogate_{short}"] for short, name in names.items()}

    usual = inspect.signature(distilled).parameters
    assert recipe("paper") == {name: usual[name].default for name in recipe("paper")}
    assert recipe("laptop") == attacks.SURROGATES["mnist"] == attacks.SURROGATES["cifar10"]
    for preset, networks in (("laptop", ["small", SIZES["cifar10"]["size"]]), ("paper", ["small", "large"])):
        assert presets.sections(ROOT / "notebooks", preset)["final_models"]["networks"] == networks


def test_orderings_are_of_the_same_audits():
    rows = pd.DataFrame(
        [
            {"cell": "a", "audit": audit, "attack": attack, "way": "first version", "bound": bound}
            for audit, bounds in enumerate([(1.0, 3.0), (2.0, 3.0), (5.0, 3.0)])
            for attack, bound in zip(("canary", "ade"), bounds, strict=True)
        ]
    )
    [found] = figures.orderings(rows, [("ade", "canary")]).to_dict("records")
    assert found["difference"] == pytest.approx(1 / 3)
    assert found["error"] == pytest.approx(np.std([2, 1, -2], ddof=1) / np.sqrt(3))
    assert (found["more"], found["audits"]) == (2, 3)


def test_a_curve_of_crafting_is_what_samples_show_of_models_that_none_was_crafted_on():
    [cell, _, substituted] = [one._replace(n_train=30, n_aux=60, steps=4) for one in curves.cells()]
    for one in (cell, substituted):
        rows, own = curves.curve(one, sizes=(16, 32), judged=40, craftings=((2, 0.05),))
        assert [(row["loss"], row["models"], len(row["separations"])) for row in rows] == [
            (loss, size, 32 // size) for loss in curves.LOSSES for size in (16, 32)
        ]
        records, network, pair = curves.made_for(one)
        trained = dpsub.audit(
            records, network, pair, one.spec, runs=72, observe_every=4, metrics=("weights",), seed=2, progress=False
        )
        by = distinguishers.AdversarialSamples(
            pair.z, pair.z_prime.y if one is substituted else None, loss="fisher", steps=2, bounds=(0, 1)
        )
        learned = by.learn(network, trained.weights[16:32], trained.bit[16:32])
        scores = learned.scores(network, trained.weights[32:])
        assert rows[4]["separations"][1] == pytest.approx(findings.d_prime(scores, trained.bit[32:]), abs=1e-5)
        assert own == pytest.approx(findings.d_prime(trained.score[32:, -1], trained.bit[32:]))
        assert all(error > 0 for row in rows for error in row["share_errors"])


def test_the_error_of_a_share_is_its_spread_over_audits():
    rng, shares, errors = np.random.default_rng(0), [], []
    for _ in range(100):
        bits = rng.integers(0, 2, 800)
        own = rng.normal(size=800) + (bits == 0)
        other = own + 0.5 * rng.normal(size=800)
        shares.append(findings.d_prime(other, bits) / findings.d_prime(own, bits))
        errors.append(curves.share_error(other, own, bits))
    assert np.mean(errors) == pytest.approx(np.std(shares), rel=0.2)


def test_auc_counts_pairs_and_ties_by_half():
    rng = np.random.default_rng(1)
    scores, bits = rng.integers(0, 5, (3, 30)).astype(float), rng.integers(0, 2, (3, 30))
    for row, coins, found in zip(scores, bits, attacks.auc(scores, bits), strict=True):
        own, others = row[coins == 0][:, None], row[coins == 1][None]
        assert found == pytest.approx(((own > others) + (own == others) / 2).mean())
    assert attacks.auc(np.array([2.0, 1.0]), np.array([0, 1])) == 1
    assert attacks.auc(np.array([2.0, 2.0]), np.array([0, 1])) == 0.5


def test_a_better_score_is_ahead_and_a_score_is_not_ahead_of_itself():
    rng = np.random.default_rng(2)
    bits = rng.integers(0, 2, 400)
    noise = rng.normal(size=400)
    strong, weak = noise - 2 * bits, noise - 0.5 * bits
    apart, low, high = attacks.ahead_by(strong, weak, bits)
    assert 0 < low < apart < high
    assert attacks.ahead_by(strong, strong, bits) == (0, 0, 0)


def test_the_interval_holds_the_true_difference_about_as_often_as_it_says():
    rng = np.random.default_rng(3)
    held = 0
    for seed in range(60):
        bits = rng.integers(0, 2, 200)
        one, other = rng.normal(size=(2, 200)) - bits  # the same AUC
        _, low, high = attacks.ahead_by(one, other, bits, seed=seed, draws=200)
        held += low <= 0 <= high
    assert held >= 51  # of 60 at 95 %: fewer with probability 0.001
