from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from dpsub import DPSGD, CanaryPair, Pairs, audit, audit_one_run, data, models
from studies.kept import read_table
from studies.language_models import kinds
from studies.language_models import models as lm
from studies.language_models import secrets as language_secrets

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(find_spec("transformers") is None, reason="transformers is not installed"),
    pytest.mark.filterwarnings("ignore:.*performance drop", "ignore:.*does not have any parameters"),
]
ROOT = Path(__file__).parents[3]
TEXTS = ["the film was good", "a bad one", "the film was bad", "good"]


@pytest.fixture(scope="module")
def words():
    return lm.Words(TEXTS)


def test_rows_hold_the_last_words_after_padding(words):
    rows = words.rows(["the film was good", "good", "the unheard"], 3)
    film, was, good = words.of("film was good")
    assert rows.tolist() == [
        [film, was, good],
        [lm.PAD, lm.START, good],
        [lm.START, words.number["the"], lm.UNKNOWN],
    ]


def test_padding_changes_no_loss(words):
    module = lm.WholeText(lm.gpt2(len(words), 8, width=16, layers=1))
    short, long = (torch.tensor(words.rows(TEXTS[:2], length)) for length in (5, 8))
    with torch.no_grad():
        assert torch.allclose(module(short), module(long), atol=1e-5)


def test_a_text_is_as_likely_as_its_words_one_after_the_other(words):
    model = lm.gpt2(len(words), 8, width=16, layers=1)
    row = torch.tensor(words.rows(["a bad one"], 4))
    with torch.no_grad():
        log_p = model(input_ids=row).logits.log_softmax(-1)[0]
        expected = sum(log_p[i, row[0, i + 1]] for i in range(3))
        assert float(lm.WholeText(model, mean=False)(row)[0, 0]) == pytest.approx(float(expected), abs=1e-5)
        last = lm.NextWord(model, [3, 4])(row)
    assert last[0].tolist() == pytest.approx(log_p[3, 3:5].tolist(), abs=1e-5)


def test_adapters_begin_as_nothing_and_alone_are_trained(words):
    plain = lm.gpt2(len(words), 8, width=16, layers=1)
    row = torch.tensor(words.rows(TEXTS, 8))
    before = lm.WholeText(plain)(row).detach()
    adapted = lm.adapted(plain, rank=2)
    assert torch.equal(lm.WholeText(adapted)(row), before)
    trained = {name for name, one in adapted.named_parameters() if one.requires_grad}
    assert trained == {f"transformer.h.0.attn.c_attn.{part}.weight" for part in ("down", "up")}


def test_secrets_are_told_apart_and_move_in_rank_without_noise(words):
    """Enough steps on one secret make it the likeliest, and adapters go along its gradient."""
    module = lm.NextWord(lm.adapted(lm.gpt2(len(words), 6, width=16)), range(3, 7))
    x = words.rows(TEXTS, 6)
    task = data.from_arrays(x, [0, 1, 2, 3], num_classes=4)
    bank = models.from_module(module, task, loss=lm.minus_log_p)
    pair = CanaryPair((x[0], 1), (x[0], 2), 0, "secret")
    spec = DPSGD(1e-3, 1.0, 1.0, 60, 1.0)
    seen = audit(
        task, bank, pair, spec, runs=8, observe_every=60, metrics=(lm.Exposure(x[:1], 1), lm.Along()),
        device="cpu", progress=False,
    )  # fmt: skip
    bit = seen.bit.values
    for name in ("score", "along"):
        values = seen[name].values[:, -1]
        assert values[bit == 0].min() > values[bit == 1].max()
    assert (seen.exposure.values[bit == 0, -1] == 2).all()
    assert (seen.exposure.values[bit == 1, -1] < 2).all()


@pytest.mark.filterwarnings("ignore")
def test_weights_from_a_folder_are_banked_and_audited_like_those_they_were_saved_from():
    task = kinds.task_of("GPT-2")
    x = task.x_train[0]
    pair, spec = CanaryPair((x, 1), (x, 2), 0, "secret"), DPSGD(1.0, 0.2, 1.0, 3, 1.0)
    seen = []
    for own in (kinds.small_gpt2(), kinds.from_folder(kinds.small_gpt2())):
        bank = models.from_module(kinds.next_word(own), task, loss=lm.minus_log_p)
        seen.append(audit(task, bank, pair, spec, runs=4, device="cpu", progress=False).score.values)
    assert np.abs(seen[0]).min() > 0
    assert np.array_equal(*seen)


def test_secrets_in_one_run_are_all_found_without_noise_from_all_steps(words, monkeypatch):
    module = lm.NextWord(lm.gpt2(len(words), 6, width=16), range(3, 7))
    x = words.rows([*TEXTS, "was good", "the film", "bad film"], 6)
    task = data.from_arrays(x, [0, 1, 2, 3, 0, 1, 2], num_classes=4)
    bank = models.from_module(module, task, loss=lm.minus_log_p)
    monkeypatch.setattr(language_secrets, "setting", lambda: (task, bank))
    monkeypatch.setattr(language_secrets, "SECRETS", 5)
    candidates, spec = np.arange(4), DPSGD(1e-3, 1.0, 1.0, 3, 1.0)
    for seed in range(2):
        ends = language_secrets.drawn(4, seed)
        assert (ends[:, 0] != ends[:, 1]).all()
        secrets, path = language_secrets.trained(candidates, ends, spec, seed)
        assert len(path) == 4
        found = language_secrets.ranks(language_secrets.of_steps(path, candidates, spec), secrets)
        assert (found == 1).all()
    y, y_prime = candidates[ends].T
    pairs = Pairs(range(5), x[:5], x[:5], y, y_prime)
    seen = audit_one_run(
        task, bank, pairs, replace(spec, steps=40), seed=seed, metrics=["weights"], device="cpu", progress=False
    )
    secrets = ends[np.arange(5), seen.bit.values[0]]
    path[-1] = torch.tensor(seen.weights.values[0])
    final = language_secrets.ranks(language_secrets.of_final_model(path, candidates), secrets)
    assert final.mean() < 1.5


@pytest.mark.parametrize("name", kinds.KINDS)
@pytest.mark.filterwarnings("ignore")
def test_banks_of_transformers_equal_opacus_record_by_record(name):
    if "peft" in name:
        pytest.importorskip("peft")
    [row] = kinds.measured({"kind": name})
    assert row["difference"] < 1e-5
    assert row.get("message", "").startswith("Opacus") == (name == "BERT, all trained")


@pytest.mark.parametrize("name", kinds.REFUSED)
@pytest.mark.filterwarnings("ignore")
def test_what_banks_cannot_do_is_refused_as_kept(name):
    kept = read_table("language_models/kinds.csv").set_index("kind")
    [row] = kinds.measured({"kind": name})
    assert row["message"] == kept.message[name]


@pytest.mark.filterwarnings("ignore")
def test_a_csv_is_fine_tuned_from_a_folder_and_audited(tmp_path):
    pytest.importorskip("peft")
    import transformers
    from tokenizers import Tokenizer, pre_tokenizers
    from tokenizers.models import WordLevel

    from studies.own_training import fine_tune_csv

    found = {word: i for i, word in enumerate(["<pad>", "<unk>", *["the", "film", "was", "good", "bad", "a"]])}
    splits = Tokenizer(WordLevel(found, unk_token="<unk>"))
    splits.pre_tokenizer = pre_tokenizers.Whitespace()
    own = {"tokenizer_object": splits, "pad_token": "<pad>", "unk_token": "<unk>"}
    transformers.PreTrainedTokenizerFast(**own).save_pretrained(tmp_path)
    shape = {"vocab_size": 8, "n_positions": 64, "n_embd": 16, "n_layer": 1, "n_head": 2, "num_labels": 2}
    config = transformers.GPT2Config(**shape, bos_token_id=1, eos_token_id=1)
    transformers.GPT2ForSequenceClassification(config).save_pretrained(tmp_path)
    table = pd.DataFrame({"text": ["the film was good", "a bad film"] * 20, "label": np.tile(["liked", "not"], 20)})
    table.to_csv(tmp_path / "reviews.csv", index=False)
    _, report, statement = fine_tune_csv.fine_tune(tmp_path / "reviews.csv", str(tmp_path), ["c_attn"])
    assert not report.refuted
    assert report.observations == 3
    assert statement.substitute > statement.add_remove
