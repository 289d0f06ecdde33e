"""Encoders: tiny ones with random weights, in folders, of the kinds that the papers use."""

import json
import shutil
from importlib.util import find_spec

import numpy as np
import pytest

from dpsub import data
from dpsub.data import embeddings
from dpsub.data.embeddings import of_images, of_sentences

transformers = pytest.importorskip("transformers")
pytestmark = [
    pytest.mark.usefixtures("folder"),
    pytest.mark.filterwarnings("ignore"),  # those libraries' warnings
    # Importing it takes four seconds, which every worker would spend when it collects the tests.
    pytest.mark.skipif(find_spec("sentence_transformers") is None, reason="sentence-transformers is not installed"),
]


SHAPE = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}


@pytest.fixture(scope="module")
def vit(tmp_path_factory):
    place = tmp_path_factory.mktemp("vit")
    transformers.set_seed(0)
    transformers.ViTModel(transformers.ViTConfig(**SHAPE, image_size=48, patch_size=16)).save_pretrained(place)
    processor = {"image_processor_type": "ViTImageProcessor", "size": {"height": 48, "width": 48}}
    (place / "preprocessor_config.json").write_text(json.dumps(processor))
    return str(place)


@pytest.fixture(scope="module")
def minilm(tmp_path_factory):
    place = tmp_path_factory.mktemp("minilm")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "a", "fine", "dull", "film"]
    transformers.set_seed(0)
    transformers.BertModel(transformers.BertConfig(**SHAPE, vocab_size=len(words))).save_pretrained(place)
    transformers.BertTokenizerFast(vocab={word: i for i, word in enumerate(words)}).save_pretrained(place)
    return str(place)


def images(count, seed=0):
    return np.random.default_rng(seed).integers(256, size=(count, 3, 32, 32), dtype=np.uint8)


def forbid(*_, **__):
    raise AssertionError("computed again")


def test_images_become_the_class_tokens_of_the_last_layer(vit):
    x = images(40)
    found = of_images(x, vit)
    assert found.shape == (40, 16)
    assert found.dtype == np.float32
    model = transformers.ViTModel.from_pretrained(vit).eval()
    processor = transformers.AutoImageProcessor.from_pretrained(vit)
    inputs = processor(images=[x[37].transpose(1, 2, 0)], return_tensors="pt")
    alone = model(**inputs).last_hidden_state[0, 0].detach().numpy()
    np.testing.assert_allclose(found[37], alone, atol=1e-5)


def test_sentences_become_what_the_encoder_pools_of_them(minilm):
    found = of_sentences(["a fine film", "dull", "a fine film"], minilm)
    assert found.shape == (3, 16)
    model = transformers.BertModel.from_pretrained(minilm).eval()
    tokens = transformers.AutoTokenizer.from_pretrained(minilm)(["a fine film"], return_tensors="pt")
    np.testing.assert_allclose(found[2], model(**tokens).last_hidden_state[0].mean(dim=0).detach(), atol=1e-5)
    assert np.abs(found[0] - found[1]).max() > 1e-3


def test_embeddings_are_kept_by_content(vit, folder, tmp_path, monkeypatch):
    first = of_images(images(3), vit)
    other = of_images(images(3, seed=1), vit)
    assert np.abs(first - other).max() > 0
    assert len(list((folder / "embeddings").glob("*.npz"))) == 2
    monkeypatch.setattr(embeddings, "_pretrained", forbid)
    np.testing.assert_array_equal(of_images(images(3), vit), first)
    with pytest.raises(AssertionError, match="computed again"):
        of_images(images(4), vit)
    shutil.copytree(vit, tmp_path / "encoder")
    (tmp_path / "encoder" / "more.txt").write_text("another encoder")
    with pytest.raises(AssertionError, match="computed again"):
        of_images(images(3), str(tmp_path / "encoder"))


def test_damaged_embeddings_are_computed_again(vit, folder):
    first = of_images(images(3), vit)
    (kept,) = (folder / "embeddings").glob("*.npz")
    kept.write_bytes(kept.read_bytes()[:100])
    np.testing.assert_array_equal(of_images(images(3), vit), first)


def test_cifar10_as_an_encoder_sees_it(vit, folder, write_cifar10):
    write_cifar10(folder / "cifar-10-batches-bin", records=6)
    plain = data.cifar10(n_train=12, n_aux=8, n_test=5)
    task = data.cifar10(n_train=12, n_aux=8, n_test=5, encoder=vit)
    assert [x.shape for x in (task.x_train, task.x_aux, task.x_test)] == [(12, 16), (8, 16), (5, 16)]
    assert task.y_aux.tolist() == plain.y_aux.tolist()
    pixels = np.rint(plain.x_aux * 255).astype(np.uint8)
    np.testing.assert_allclose(task.x_aux, of_images(pixels, vit), atol=1e-5)
    assert task.name == f"CIFAR-10 (30 of its 50,000 training images) embedded by {vit}"


def test_sst2_as_an_encoder_sees_it(minilm, folder):
    (folder / "sst2").mkdir()
    words = ["a", "fine", "dull", "film"]
    lines = [f"{one} {other} film\t{(i + j) % 2}" for i, one in enumerate(words) for j, other in enumerate(words)]
    (folder / "sst2" / "train.tsv").write_text("\n".join(lines))
    (folder / "sst2" / "dev.tsv").write_text("fine\t1\ndull\t0\n")
    task = data.sst2(n_train=8, n_aux=4, encoder=minilm)
    assert [x.shape for x in (task.x_train, task.x_aux, task.x_test)] == [(8, 16), (4, 16), (2, 16)]
    np.testing.assert_allclose(task.x_test, of_sentences(["fine", "dull"], minilm), atol=1e-6)
    assert task.y_test.tolist() == [1, 0]


@pytest.mark.parametrize(
    ("name", "content", "told"),
    [
        ("2_Dense/pytorch_model.bin", "", "2_Dense/pytorch_model.bin, a format that can run code: convert it"),
        ("modules.json", [{"path": "", "type": "evil.Evil"}], "modules.json does: the class 'evil.Evil'"),
        ("sentence_bert_config.json", {"model_args": {"trust_remote_code": True}}, "does: trust_remote_code"),
        ("2_Dense/config.json", {"activation_function": "os.system"}, "the class 'os.system'"),
    ],
)  # fmt: skip
def test_a_folder_with_code_of_its_own_is_refused(minilm, vit, tmp_path, name, content, told):
    for of, embed in (
        (minilm, lambda place: of_sentences(["a"], place)),
        (vit, lambda place: of_images(images(2), place)),
    ):
        place = tmp_path / "encoder"
        shutil.copytree(of, place)
        (place / name).parent.mkdir(exist_ok=True)
        (place / name).write_text(content if isinstance(content, str) else json.dumps(content))
        with pytest.raises(ValueError, match=f"encoder must .*{told}"):
            embed(str(place))
        shutil.rmtree(place)


def test_a_folder_as_sentence_transformers_saves_it_is_read(minilm, tmp_path):
    import sentence_transformers
    from sentence_transformers.sentence_transformer.modules import Dense

    first = of_sentences(["a fine film"], minilm)
    whole = sentence_transformers.SentenceTransformer(minilm)
    dense = Dense(16, 4)
    sentence_transformers.SentenceTransformer(modules=[*whole, dense]).save(str(tmp_path / "dense"))
    whole.save(str(tmp_path / "saved"))
    np.testing.assert_allclose(of_sentences(["a fine film"], str(tmp_path / "saved")), first, atol=1e-6)
    assert of_sentences(["a fine film"], str(tmp_path / "dense")).shape == (1, 4)


def test_weights_are_read_as_safetensors_alone(minilm, vit, monkeypatch):
    asked = []
    monkeypatch.setattr(embeddings, "_pretrained", lambda of, encoder, **options: asked.append(options) or forbid())
    for embed in (lambda: of_sentences(["a film"], minilm), lambda: of_images(images(5), vit)):
        with pytest.raises(AssertionError):
            embed()
    assert asked[0]["model_kwargs"] == {"use_safetensors": True}
