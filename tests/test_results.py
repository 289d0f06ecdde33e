"""What the repository keeps of the reruns at full scale, held against what the pages say of it."""

import itertools
import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from run import OPENBLAS
from scipy.stats import binom

from dpsub import audits, crafters, findings
from dpsub.accounting import worst_case_epsilon
from dpsub.estimators import one_run_epsilon_lower_bound
from studies.beyond_membership import distances
from studies.faults import fault_power, libraries, many_canaries
from studies.final_models import attacks as final_attacks
from studies.final_models import crafting_curve, finished_models, learned_at_zero
from studies.final_models import figures as final_figures
from studies.kept import MADE, STUDIES, read_json, read_table
from studies.language_models import audits as language_model_audits
from studies.language_models import secrets as language_secrets
from studies.one_run import bridge
from studies.one_run import figures as cross_talk_figures
from studies.tight_auditing import clipping_alone, step_seeds, step_tables

RESULTS = Path(__file__).parent.parent / "results"
load = cache(audits.load)  # several tests look at the same stores
PAPER, FIGURE_4 = RESULTS / "paper", RESULTS / "laptop" / "fig4_from_scratch"
LOOKS = RESULTS / "laptop" / "learned_distinguishers"
FINAL_MODELS = RESULTS / "laptop" / "final_models"
STORES = sorted([*RESULTS.glob("**/*.db"), *STUDIES.glob("**/*.db")])


def test_kept_audits_are_whole_and_say_where_they_come_from():
    assert len(STORES) > 240
    for store in STORES:
        about = load(store).attrs
        commits = about["commit"].split(" + ")  # several, if it was continued
        if store.parent == PAPER / "fig3_natural_data":  # results/README.md names the commit
            assert commits == ["not a checkout"]
        else:
            assert all(map(str.isalnum, commits)), f"{store}: made with commits, not with changes that were in none"
        assert about["device"], store
        assert about["last_written"], store


def test_further_repeats_differ_from_the_first_in_their_seed_alone():
    repeats = list(PAPER.glob("**/repeat=*/*.db"))
    assert len(repeats) > 50
    same = ("scenario", "adjacency", "task_fingerprint", "model", "noise_multiplier", "max_grad_norm", "sample_rate",
            "steps", "learning_rate", "optimizer", "runs", "observe_every", "slot", "canary_seed")  # fmt: skip
    for store in repeats:
        first, again = load(store.parents[1] / store.name), load(store)
        number = int(store.parent.name.removeprefix("repeat="))
        assert again.attrs["seed"] == audits.repeat_seeds(first.attrs["seed"], number + 1)[number], store
        assert again.attrs.get("canary_cosine", 0) == pytest.approx(first.attrs.get("canary_cosine", 0), rel=1e-6)
        assert [again.attrs[name] for name in same] == [first.attrs[name] for name in same], store
        for of_one in np.atleast_2d(first.score.isel(step=-1)):
            assert abs(np.corrcoef(of_one, again.score[:, -1])[0, 1]) < 0.1, store


def test_kept_bounds_of_steps_are_those_of_the_kept_audits():
    place = RESULTS / "laptop" / "steps_table1"
    kept = step_tables.stored(place)
    again = step_tables.computed(place, [place / "digits-add_remove-8.db"])
    pd.testing.assert_frame_equal(kept.loc[again.index], again, rtol=1e-6, check_dtype=False)
    assert len(kept) == 7 * len(list(place.glob("*.db")))


def test_every_figure_at_full_scale_has_its_audits():
    assert {path.relative_to(PAPER).parts[0] for path in STORES if path.is_relative_to(PAPER)} == {
        "quickstart", "fig3_natural_data", "fig3_small_network", "figA1_accuracy", "figA2_clipping", "figA3_steps",
        "figA4_learning_rate", "figA6_text", "journal_final_model",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("folder", "encoder", "width", "another", "slots"),
    [
        ("fig3_natural_data", "EfficientNet-Lite0", 1280, [False, True, True], (198, 152)),
        ("fig3_small_network", "a small CNN", 768, [False, False, True], (41, 41)),
    ],
)
def test_figure_3_is_of_the_papers_size_and_names_its_stand_in(folder, encoder, width, another, slots):
    stored = (load(path) for path in (PAPER / folder).glob("*.db"))
    figure_3 = {(one.sample_rate, one.scenario): one for one in stored}
    assert set(figure_3) == {(q, scenario) for q in (1.0, 0.25, 0.0625) for scenario in crafters.BY_SCENARIO}
    for one in figure_3.values():
        assert one.sizes == {"repeat": 3, "run": 2500, "step": 20}
        assert one.task == f"CIFAR-10 features of {encoder} (stand-in for ViT-B/16)"
        assert one.model == f"Linear(features={width}, classes=10)"
        table_a1 = {"max_grad_norm": 2.0, "steps": 500, "learning_rate": 1e-3, "n": 500, "optimizer": "sgd"}
        assert {name: one.attrs[name] for name in table_a1} == table_a1
    pairs = [figure_3[q, "S4"].canary_fingerprint for q in (1.0, 0.25, 0.0625)]
    assert [pair != pairs[0] for pair in pairs] == another, "the pages say at which q the mislabeled pair is another"
    targets = {(q, figure_3[q, s].slot) for q, s in figure_3 if s != "S2"}
    assert targets == {(q, slots[q < 1]) for q in (1.0, 0.25, 0.0625)}, "and that the target is, on one encoder"


def test_a_crafted_inputs_gradient_is_farthest_from_its_targets_in_models_of_the_kept_audits():
    table = read_table("beyond_membership/distances.csv").set_index(list(distances.CELL))
    assert list(table.index) == distances.CELLS
    for (folder, q, scenario), row in table.iterrows():
        one = load(PAPER / folder / f"q={q:g}-{scenario}.db")
        assert (row.slot, row.cosine) == (one.slot, pytest.approx(one.canary_cosine, abs=1e-6))
    apart = table.distance.unstack()
    others = (apart.S5 - apart.S4).abs()
    assert apart.S3.min() > 0.98 > 0.84 > apart[["S4", "S5"]].max(axis=None)
    assert others["fig3_small_network"].min() > 0.08 > 0.03 > others["fig3_natural_data"].max()


def test_final_models_of_either_task_were_audited_with_as_many_models_as_the_papers():
    stored = {path.name.split(".db")[0]: load(path) for path in PAPER.glob("journal_final_model/*.db")}
    final = {name: one for name, one in stored.items() if "steps" not in name}
    assert (len(stored), len(final)) == (30, 12)
    assert all(one.sizes["run"] == 2000 and one.sizes["step"] == 1 for one in final.values())
    assert all(one.sizes["observation"] == 2000 for name, one in stored.items() if name not in final)
    last = findings.last_step([one for one in final.values() if one.adjacency == "add_remove"], delta=1e-5)
    assert last.add_remove.to_numpy() == pytest.approx(8, abs=1e-3)
    assert (last.bound > 1).all()
    assert (last.bound < last.add_remove).all()


def test_models_without_noise_are_audited_with_each_canary_at_each_clipping_bound():
    kept = clipping_alone.kept()
    cells = {(*of, canary, seed) for seed, of, canary in itertools.product(
        range(clipping_alone.SEEDS), clipping_alone.TRAININGS, clipping_alone.CANARIES
    )}  # fmt: skip
    assert len(kept) == len(cells)
    assert cells == set(kept[list(clipping_alone.CELL)].itertuples(index=False, name=None))
    assert (kept[clipping_alone.HALF] <= kept["ranks"]).all()


@pytest.fixture(scope="module")
def figure_4():
    stored = (load(path) for path in FIGURE_4.glob("q=*.db"))
    return {(one.sample_rate, one.scenario): one for one in stored}


def test_figure_4_is_of_table_a1_but_for_records_and_models_and_names_its_stand_in(figure_4):
    assert set(figure_4) == {(q, scenario) for q in (0.25, 0.0625) for scenario in crafters.BY_SCENARIO}
    for one in figure_4.values():
        assert dict(one.score.sizes) == {"run": 256, "step": 20}
        assert "stand-in for Purchase100" in one.task
        table_a1 = {"max_grad_norm": 5.0, "steps": 2500, "learning_rate": 1.8e-3, "optimizer": "adam"}
        assert {name: one.attrs[name] for name in table_a1} == table_a1
        assert "89828 parameters, random start" in one.model
        assert one.n == 1000


@pytest.mark.slow
@pytest.mark.skipif(not OPENBLAS, reason="the kept audits' records were made on an x86-64 processor")
def test_the_made_up_shoppers_of_kept_audits_can_be_made_again(figure_4):
    make = (
        "from dpsub.data import purchase100_like as make\n"
        "print(make(1000, 1000, seed=0).fingerprint, make(2500, seed=0).fingerprint)"
    )
    told = subprocess.run(
        [sys.executable, "-c", make], env=os.environ | OPENBLAS, capture_output=True, text=True, check=True
    )
    from_scratch, purchases = told.stdout.split()
    assert {one.task_fingerprint for one in figure_4.values()} == {from_scratch}
    of_steps = (RESULTS / "laptop" / "steps_table1").glob("purchases-*.db")
    assert {load(path).task_fingerprint for path in of_steps} == {purchases}


@pytest.mark.slow
def test_audits_of_steps_over_seeds_are_whole_and_no_two_share_random_numbers():
    table = read_table("tight_auditing/step_seeds.csv")
    assert list(table.columns) == [*step_seeds.NAMES, "seed", *step_seeds.COLUMNS, *MADE]
    assert table.commit.str.isalnum().all(), "made with a commit, not with changes that were in none"
    assert not table.duplicated([*step_seeds.NAMES, "seed", "part"]).any()
    assert not table.duplicated(["part", "apart", "others", "mu"]).any()
    for key, rows in table.groupby([*step_seeds.NAMES, "seed"]):
        setting = step_seeds.Setting(*key[:-1])
        assert rows.noise.to_numpy() == pytest.approx(step_seeds.spec_of(setting).noise_multiplier, rel=1e-4)
        assert list(rows.part) in (["all"], step_seeds.parts_of(setting))
        assert rows.observations.iloc[0] == step_seeds.STEPS * setting.trainings
    of_setting = table[table.part == "all"].sort_values("seed").groupby(step_seeds.NAMES).step_gdp_zb
    assert of_setting.apply(lambda bounds: bounds.isna().is_monotonic_increasing).all(), (
        "the first seeds have all bounds"
    )
    asked = {one for settings in step_seeds.FIGURES.values() for one in settings}
    assert {step_seeds.Setting(*key) for key in table[step_seeds.NAMES].itertuples(index=False, name=None)} <= asked


def test_valid_bounds_of_steps_over_seeds_exceed_the_accountants_epsilon_seldom():
    table = read_table("tight_auditing/step_seeds.csv")
    table = table[(table.part == "all") & (table.adjacency == table.epsilon_of)]
    above = table.training_bets > table.epsilon
    assert len(table) > 250
    assert above.sum() <= binom.ppf(0.999, len(table), 0.05)


def test_valid_bounds_seldom_accuse_a_right_step_and_the_papers_bayesian_rule_often_does():
    table = fault_power.table()
    assert {"none", "noise for 1.57", "100 seeds", "clips the average"} <= set(table.index.unique("fault"))
    assert (table.bounds.map(len) == fault_power.AUDITS).all()
    right = table.found["none"]
    for name in ("bets", "ranks"):
        assert (right[name] <= binom.ppf(0.999, fault_power.AUDITS, 0.05) / fault_power.AUDITS).all()
    assert (right["gdp_zb"] > 0.4).all()
    for name in ("bets", "ranks", "gdp_cp"):
        assert table.found["noise for 1.57", name, 20_000] > 0.7
        assert table.found["clips the average", name, 2_000] == 1


def test_at_zero_only_what_was_learned_from_the_judged_models_shows_anything():
    made = read_json("final_models/learned_at_zero.json")
    assert made["made"]["commit"].isalnum()
    assert (made["of"]["audits"], made["of"]["runs"]) == (200, 256)
    table = learned_at_zero.table()
    assert (table.audits == 200).all()
    assert set(table.index[table.valid]) == {"half and half, ranks", "folds"}
    assert (table["above 0"][table.valid] <= binom.ppf(0.99, 200, 0.05)).all()
    assert (table["above 0"][["first version", "in sample, ranks"]] > 150).all()
    assert table["mean"]["first version"] > 1
    assert table["above 0"]["second version"] < 40


def test_kept_audits_of_finished_models_are_wrong_only_where_a_proxys_mistakes_are_not_allowed_for():
    kept = read_json("final_models/finished_models.json")
    assert kept["made"]["commit"].isalnum()
    table = pd.DataFrame(kept["simulated"])
    assert set(table["case"]) == set(finished_models.CASES)
    assert (table.audits == finished_models.AUDITS).all()
    allowed_for = table.tolerance >= table["off by"]
    most = binom.ppf(0.999, finished_models.AUDITS, 0.05)
    assert (table.wrong[allowed_for] <= most).all()
    assert (table.wrong[~allowed_for] > most).all()
    text = pd.DataFrame(kept["SST-2"]).set_index("model")
    assert text["taken as exact"]["other records"] > 0  # a false alarm
    assert (text["with its doubt"] == 0).all()


def test_samples_draw_level_with_the_canary_and_not_ahead_of_it():
    table, kept = crafting_curve.table()
    assert kept["made"]["commit"].isalnum()
    assert kept["of"]["judged"] == crafting_curve.JUDGED
    cells = {one.name: one for one in crafting_curve.cells()}
    assert set(table.cell) == set(cells)
    assert len(table) == len(cells) * len(crafting_curve.LOSSES) * len(crafting_curve.CRAFTINGS) * len(
        crafting_curve.SIZES
    )
    most_models = table[table.models == max(crafting_curve.SIZES)]
    assert (most_models.groupby("cell").share.max() > 0.95).all()
    assert (most_models.share - 1 < 3 * most_models.error).all()


def test_learned_scores_are_of_models_enough_and_never_much_worse_than_the_canarys():
    stored = {path.name.split(".db")[0]: load(path) for path in LOOKS.glob("*.db")}
    limits = json.loads((LOOKS / "limits.json").read_text())
    heads = {(one.scenario, one.sample_rate, one.learning_rate) for key, one in stored.items() if key[:6] == "linear"}
    assert heads == {(f"S{k}", q, eta) for k in (2, 3, 4, 5) for q in (1.0, 0.0625) for eta in (0.05, 0.5, 5)}
    assert len(stored) == len(heads) + 2  # a network, too
    for key, one in stored.items():
        assert one.sizes["run"] == 10_000, key
        assert (one.metrics, one.learning_runs, one.adjacency) == ("learned", 256, "substitute")
        apart = {name: findings.d_prime(one[name][:, 0], one.bit) for name in ("score", "learned")}
        assert apart["learned"] > apart["score"] - 0.02, key
        if key.startswith("linear"):
            assert apart["score"] < limits[f"{key}, limit"] + 0.08, key  # three standard errors and more
        if one.sample_rate == 1:
            assert apart["score"] < limits[f"{key}, ceiling"] + 0.08, key


AHEAD = ["ahead", "ahead_low", "ahead_high"]
HELD_OUT = ("second version", "held out", "held out, second crafting")


def final_tables(folder):
    """Each table's rows, and how its models were made."""
    return {
        str(path.relative_to(folder).with_suffix("")): (
            pd.read_csv(path, skiprows=1),
            json.loads(path.read_text().partition("\n")[0].removeprefix("# ")),
        )
        for path in (*folder.glob("*.csv"), *folder.glob("large/*.csv"))
    }


@pytest.fixture(scope="module")
def final_models():
    return final_tables(FINAL_MODELS)


def test_tables_of_final_models_are_whole_and_say_where_they_come_from(final_models):
    assert "digits-average-blank-eps10-C1-add_remove" in final_models
    for name, (rows, about) in {**final_models, **final_tables(FINAL_MODELS / "two_records")}.items():
        assert all(one.isalnum() for one in about["commit"].split(" + ")), name
        assert about["device"], name
        assert about["last_written"], name
        assert rows.drop(columns=AHEAD, errors="ignore").notna().all().all(), name
        if "ahead" in rows:
            held_out = rows.way.isin(HELD_OUT) & (rows.box == "white")
            assert rows[held_out][AHEAD].notna().all().all(), name
        assert (rows.valid == ~rows.way.isin(["first version", final_attacks.BEST_STEP, "second version"])).all(), name
        audits_of_256 = rows[(rows.models == 256) & (rows.way == "first version") & (rows.attack == "canary")]
        assert len(audits_of_256) == (0 if name.startswith("large/") else about["models"] // 256), name


def test_settings_on_digits_are_those_of_the_study_with_all_their_executions(final_models):
    found = {name: set(rows[rows.models == 256].audit) for name, (rows, _) in final_models.items()}
    for path, _, cell in final_attacks.wanted("digits"):
        seeds = set() if path.startswith("large/") else set(range(final_attacks.EXECUTIONS["digits"]))
        assert found.pop(path.removesuffix(".csv")) == seeds, cell.name
    assert not [name for name in found if "digits" in name]


def test_a_figure_of_final_models_has_a_panel_where_there_is_something_to_compare():
    rows, _ = final_attacks.kept(FINAL_MODELS)
    by_record = f"digits{final_attacks.BY_RECORD}"
    for number, by, data in (
        (3, "theory", ["digits", by_record, "mnist", "cifar10"]),
        (8, "max_grad_norm", ["digits", by_record, "mnist"]),
    ):
        figure, axes, shown = final_figures.panels(rows, number, by, sorted(set(rows[by])))
        assert len(axes) == len(set(shown.data))
        assert set(shown.data) == set(data)
        plt.close(figure)


def test_valid_bounds_on_final_models_are_below_the_accountants_as_often_as_they_promise(final_models):
    above = total = 0
    for rows, about in final_models.values():
        valid = rows[(rows.way == "all models") & (rows.models == 256)]
        above += int((valid.bound > about["cell"]["epsilon"]).sum())
        total += len(valid)
    assert above <= binom.ppf(0.999, total, 0.05)


def test_one_pair_overtakes_many_once_there_are_models_enough():
    about, rows = bridge.about(), bridge.table()
    assert about["commit"].isalnum()
    assert set(rows.pairs) == {1, 10, 50, 200}
    gdp = rows[(rows.method == "gdp") & (rows.score == "step_score")]
    mean = gdp.set_index(["kind", "pairs", "models"])["mean"]
    assert mean["gradient", 200, 1] > mean["gradient", 50, 1] > mean["gradient", 10, 1]
    assert mean["gradient", 200, 16] > 3 * mean["gradient", 1, 16]
    assert mean["gradient", 1, 2048] > 0.85 * about["substitute"] > 1.5 * mean["gradient", 10, 512]
    assert mean["mislabeled"].max() == mean["mislabeled", 1, 1024] < 0.5 * about["substitute"]
    assert bridge.enough(rows, "gradient") == 128
    assert bridge.as_many(rows, "gradient", 200) == 64


def test_the_bridges_bounds_are_wrong_no_more_often_than_they_say():
    kept = read_json("one_run/bridge.json")
    for row in kept["rows"]:
        wrong = sum(bound > kept["of"]["substitute"] for bound in row["bounds"])
        assert wrong <= binom.ppf(1 - 1e-4, len(row["bounds"]), 0.05)


def test_the_bridge_counts_trainings():
    means = {(1, 2): 0.1, (1, 4): 2.0, (9, 1): 1.0, (9, 2): 1.1, (9, 4): 1.2}
    rows = pd.DataFrame(
        [("gradient", "step_score", "gdp", *key, mean) for key, mean in means.items()],
        columns=["kind", "score", "method", "pairs", "models", "mean"],
    )
    assert bridge.enough(rows, "gradient") == 4
    assert bridge.as_many(rows, "gradient", 9) == 4
    assert bridge.enough(rows[rows.models < 4], "gradient") is None
    assert bridge.as_many(rows[rows.models < 4], "gradient", 9) is None
    assert bridge.ceiling(200, 1) > bridge.ceiling(50, 1) > bridge.ceiling(10, 1)


CROSS_TALK = read_json("one_run/cross_talk.json")


def test_gradient_pairs_on_mnist_show_what_ideal_canaries_show():
    of, found = CROSS_TALK["of"], CROSS_TALK["gradient"]
    assert CROSS_TALK["made"]["commit"].isalnum()
    mechanism = {name: of[name] for name in ("noise_multiplier", "sample_rate", "steps")}
    assert found["stated"] == pytest.approx(of["substitute"], abs=1e-3)
    assert found["hidden_state"] == pytest.approx(worst_case_epsilon(**mechanism, delta=of["delta"]), abs=1e-3)
    assert (found["records"], found["pairs"]) == (30_000, 1_000)
    for rule, bounds in found["trained"]["bounds"].items():
        ideal = np.mean(found["exact"]["bounds"][rule])
        assert np.mean(bounds) == pytest.approx(ideal, rel=0.1), rule
        assert len(bounds) == 8
    for rule, bounds in found["exact"]["bounds"].items():
        wrong = sum(bound > found["hidden_state"] for bound in bounds)
        assert wrong <= binom.ppf(1 - 1e-4, len(bounds), 0.05), rule
    assert np.mean(found["accuracy"]) == pytest.approx(np.mean(found["without"]), abs=0.01)
    spread = of["noise_multiplier"] ** 2 + of["sample_rate"] * (1 - of["sample_rate"])
    exact = 2 * of["sample_rate"] * (of["steps"] / spread) ** 0.5
    assert found["exact"]["separation"] == pytest.approx(exact, rel=0.01)


@pytest.fixture(scope="module")
def cross_talk():
    """The separation, its standard error, the bounds, and what undisturbed pairs have, of all models of each audit."""
    found = cross_talk_figures.frame(CROSS_TALK["rows"]).reset_index()
    found = found[found.models == found.trained]
    return found.set_index(["kind", "records", "pairs", "width", "score"]).sort_index()


def test_each_step_against_cross_talk_helps_records_and_none_helps_an_attribute(cross_talk):
    apart = cross_talk.separation
    for cell in [
        ("mislabeled", 30_000, 1_000, 0), ("mislabeled", 3_000, 1_000, 0), ("mislabeled", 3_000, 100, 0),
        ("natural", 3_000, 100, 0), ("natural", 3_000, 1_000, 0),
    ]:  # fmt: skip
        own = apart.loc[cell]
        assert own["plain"] + 0.15 < own["expected"] < own["whitened"] - 0.2, cell
        assert own["whitened"] < cross_talk.alone.loc[cell].iloc[0]
        assert abs(own["plain"] - own["final"]) < 0.05
    headline = cross_talk.loc[("mislabeled", 30_000, 1_000, 0)]
    assert (headline.separation[["plain", "final"]].abs() < 2 * headline.error[["plain", "final"]]).all()
    assert headline.gdp["final"] == headline.gdp["plain"] == 0 < headline.gdp["expected"] < headline.gdp["whitened"]
    attribute = cross_talk.loc[("attribute", 3_000, 100, 0)]
    assert (attribute.separation.abs() < attribute.error).all()
    assert attribute.alone.max() < 0.1
    assert attribute.gdp.max() == 0


def test_bounds_of_cross_talk_are_below_the_stated_epsilon_and_dp_shows_less():
    found = cross_talk_figures.frame(CROSS_TALK["rows"])
    assert found.gdp.max() < 0.5 * CROSS_TALK["of"]["substitute"]
    assert (found.dp <= found.gdp + 0.02).all()
    growing = found.gdp.loc["mislabeled", 3_000, 100, 0, "whitened"]
    assert growing[1] < growing[4] < growing[16]
    table = cross_talk_figures.bounds_table(found)
    assert table.loc[("mislabeled, 1,000 of 30,000", "whitened"), "right"] == "153 of 200"


def test_the_table_of_libraries_has_a_row_for_each_recipe():
    table = pd.read_csv(STUDIES / "faults/libraries.csv", keep_default_na=False)
    assert list(table.name) == list(libraries.RECIPES)
    assert table.commit.str.isalnum().all()
    for row in table.itertuples():
        assert (row.verdict == "refuted") == (row.bound > row.claimed or row.fault != ""), row.name
        assert row.clipping == "", row.name
        assert row.verdict == "refuted" or row.noise == pytest.approx(row.noise_multiplier, rel=0.01), row.name


def test_audits_of_language_models_are_all_there_and_show_most_where_a_word_is_learned_alone():
    about = language_model_audits
    kept = read_table("language_models/audits.csv").set_index([*about.CELL])
    assert set(kept.index) == set(about.CELLS)
    assert (kept[["score", "along", "steps"]].fillna(0) <= about.EPSILON).all(axis=None)
    alone, whole = (kept.loc[(task, "number", 1.0, about.SMALL, 0)] for task in ("last word", "text"))
    assert alone.distance > 3 * whole.distance
    assert alone.score > whole.score


def test_trainings_with_secrets_are_all_there_and_show_less_than_their_epsilon():
    about = language_secrets
    kept = read_table("language_models/secrets.csv").set_index([*about.CELL])
    assert set(kept.index) == set(about.CELLS)
    for (k, _), row in kept.iterrows():
        for right in (row.final, row.steps):
            bound = one_run_epsilon_lower_bound(right, row.secrets, row.secrets, delta=1e-5, candidates=k)
            assert bound.epsilon < language_model_audits.EPSILON


def test_correct_trainings_are_hardly_accused():
    table = read_table("faults/correct_trainings.csv")
    assert not table.duplicated(["kind", "adjacency"]).any()
    assert len(table) == 45
    assert (table.refuted <= 0.05 * table.trainings).all()
    assert not table.clipping.any()


def test_several_canaries_bound_a_correct_step_by_more_and_never_by_too_much():
    table = read_table("faults/many_canaries.csv")
    assert set(zip(table.noise, table.canaries, strict=True)) == {
        *itertools.product(many_canaries.NOISES, many_canaries.CANARIES)
    }
    right = table[table.noise == 1].set_index("canaries")
    assert (right[["mu_100", "mu_400"]] < many_canaries.CLAIMED).all(axis=None)
    assert (right.refuted == many_canaries.MOST).all()
    assert right.mu_100[10] > 2 * right.mu_100[1]
    assert (table[table.noise < 1].refuted < 10).all()
