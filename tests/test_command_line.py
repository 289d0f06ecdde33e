import json
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import numpy as np
import pytest
import torch
from cases import slow_but
from opacus.data_loader import DPDataLoader
from torch.utils.data import DataLoader, TensorDataset

from dpsub import accounting, estimators
from dpsub.__main__ import main

ROOT = Path(__file__).parent.parent
SIZES = ["--batch-size", "256", "--records", "25000", "--epochs", "8"]
ENTRY_POINT = Path(sys.executable).with_name("dpsub")
COMMANDS = {"module": [sys.executable, "-m", "dpsub"], "entry point": [str(ENTRY_POINT)]}


def printed(capsys, *arguments):
    main([*map(str, arguments)])
    return capsys.readouterr().out


@pytest.mark.parametrize("command", slow_but(COMMANDS, "module"))
def test_the_command_states_both_epsilons_of_a_training(command):
    if command == "entry point" and not ENTRY_POINT.exists():
        pytest.skip("dpsub was installed before it had an entry point: run `make` again")
    asked = ["epsilon", "--noise-multiplier", ".8", *SIZES, "--delta", "1e-5"]
    text = subprocess.run([*COMMANDS[command], *asked], check=True, capture_output=True, text=True, cwd=ROOT).stdout
    mechanism = {"noise_multiplier": 0.8, "sample_rate": 1 / 98, "steps": 784, "delta": 1e-5}
    for adjacency, words in (("add_remove", "add/remove"), ("substitute", "substitute")):
        shown = float(re.search(rf"ε = (\S+) for .*\({words} adjacency\)", text)[1])
        assert accounting.epsilon(**mechanism, adjacency=adjacency) <= shown < 1.01 * shown
    how = "98 batches an epoch. As in Opacus, the sample rate is 1/98 = 0.0102, not b/n = 0.01024. There are 784"
    assert how in text
    assert "This model was trained with differentially private SGD (784 steps at noise multiplier 0.8" in text


def test_the_entry_point_is_the_module():
    assert tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["scripts"] == {
        "dpsub": "dpsub.__main__:main"
    }


def test_the_accountant_starts_without_torch():
    asked = ["--sample-rate", "0.1", "--steps", "5", "--delta", "1e-5", "--trials", "2"]
    code = f"""import sys; from dpsub.__main__ import main
main(["epsilon", "--noise-multiplier", "2", *{asked}])
main(["noise", "--epsilon", "3", "--adjacency", "substitute", *{asked}])
assert "torch" not in sys.modules"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, cwd=ROOT)


@pytest.mark.parametrize("records", [930, 925, 980])  # in batches of 10; of 93 batches Opacus takes 92
def test_steps_and_sample_rate_are_those_of_opacus(capsys, records):
    loader = DPDataLoader.from_data_loader(DataLoader(TensorDataset(torch.zeros(records, 1)), batch_size=10))
    sizes = ["--batch-size", 10, "--records", records, "--epochs", 3]
    asked = ["epsilon", "--noise-multiplier", 2, "--delta", 1e-5, "--json"]
    [phase] = json.loads(printed(capsys, *asked, *sizes))["phases"]
    assert phase == {"noise_multiplier": 2.0, "sample_rate": 1 / len(loader), "steps": 3 * len(loader)}
    [shuffled] = json.loads(printed(capsys, *asked, *sizes, "--sampling", "epochs"))["phases"]
    assert shuffled["sample_rate"] == 10 / (records + -records % 10)


def test_json_is_the_statement_for_a_file(capsys):
    asked = ["--noise-multiplier", 1, "--sample-rate", 0.1, "--steps", 20, "--delta", 1e-5]
    several = ["--prior", 0.5, 0.3, 0.2, "--trials", 3, "--sampling", "epochs"]
    written = json.loads(printed(capsys, "epsilon", *asked, *several, "--json"))
    assert written["contents"]["epsilon"] == accounting.epsilon(
        noise_multiplier=1, sample_rate=0.1, steps=60, delta=1e-5, adjacency="substitute", sampling="epochs"
    )
    assert (written["risk"]["prior"], written["trainings_tried"]) == ([0.5, 0.3, 0.2], 3)


TARGETS = [[], ["--trials", 4], ["--sampling", "epochs", "--trials", 2]]


@pytest.mark.parametrize("more", slow_but(TARGETS, TARGETS[0], TARGETS[2]))
def test_noise_for_a_target_meets_it_and_hardly_more(capsys, more):
    asked = ["--epsilon", 3, "--adjacency", "substitute", "--sample-rate", 0.1, "--steps", 15, "--delta", 1e-5]
    text = printed(capsys, "noise", *asked, *more)
    sigma = float(re.search(r"Noise multiplier (\S+) is enough", text)[1])
    found = json.loads(
        printed(capsys, "epsilon", "--noise-multiplier", sigma, *asked[4:], *more, "--json")
    )["contents"]["epsilon"]  # fmt: skip
    assert 2.99 < found <= 3
    assert "ε = 3.00 for labels" in text


def test_scores_in_a_file_have_the_bound_that_the_function_returns(capsys, tmp_path):
    rng = np.random.default_rng(0)
    bits = rng.integers(0, 2, 400)
    scores = rng.normal(3 * (bits == 0))
    path = tmp_path / "scores.csv"
    lines = [f"{i},{score!r},{bit}" for i, (score, bit) in enumerate(zip(scores.tolist(), bits.tolist(), strict=True))]
    path.write_text("\n".join(["model,score,bit", *lines]))
    assert printed(capsys, "bound", path, "--delta", 1e-5).strip() == str(
        estimators.epsilon_lower_bound(scores, bits, delta=1e-5)
    )
    by_bets = printed(capsys, "bound", path, "--delta", 1e-3, "--claim", "gdp", "--rule", "bets", "--alpha", 0.1)
    assert by_bets.strip() == str(estimators.epsilon_lower_bound(scores, bits, delta=1e-3, rule="bets", alpha=0.1))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--noise-multiplier", "0", *SIZES], "noise_multiplier must be > 0"),
        (["--noise-multiplier", "1", *SIZES[:4]], "give --batch-size and --records with --epochs or --steps, or else"),
        (["--noise-multiplier", "1", *SIZES, "--steps", "3"], "or else"),
        (["--noise-multiplier", "1", *SIZES, "--sampling", "without_replacement"], "for batches without replacement"),
        (["--noise-multiplier", "1", *SIZES, "--sampling", "shuffle"], "did you mean 'epochs'?"),
        (["--noise-multiplier", "1", *SIZES, "--prior", "0.5", "0.6"], "prior must be a number > 0 and < 1, or"),
        (["--noise-multiplier", "1", *SIZES, "--trials", "0"], "trials must be >= 1"),
    ],
)
def test_wrong_arguments_are_named(capsys, arguments, said):
    with pytest.raises(SystemExit, match="2"):
        main(["epsilon", *arguments, "--delta", "1e-5"])
    assert said in " ".join(capsys.readouterr().err.split())


def test_a_file_without_the_columns_is_refused(capsys, tmp_path):
    path = tmp_path / "scores.csv"
    path.write_text("score;bit\n1;0\n")
    for name, said in ((path, "must have the columns score and bit, got ['score;bit']"), (tmp_path / "no", "No such")):
        with pytest.raises(SystemExit, match="2"):
            main(["bound", str(name), "--delta", "1e-5"])
        assert said in capsys.readouterr().err
