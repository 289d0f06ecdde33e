"""The drawings in book/explorers, and that those kept in book/images are what the code draws."""

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import matplotlib as mpl
import matplotlib.pyplot as plt
import numpy as np
import pytest

from book.explorers import drawings, page_drawings

IMAGES = Path(__file__).parents[2] / "book/images"
NUMBER = re.compile(r"(?<![#\w.])-?\d+(?:\.\d+)?(?:e-?\d+)?")  # but not in a colour or a name
DESCRIPTION = "{http://purl.org/dc/elements/1.1/}description"
LINK = "{http://www.w3.org/1999/xlink}href"


def step():
    return drawings.Step(
        gradients=np.array([[3.0, 4.0], [0.3, 0.4], [-6.0, 8.0], [7.0, 0.0]]),
        other=np.array([-3.0, -4.0]),
        sampled=np.array([True, True, True, False]),
        clipping_bound=2.0,
        noise_multiplier=1.5,
        noise=np.array([1.0, -1.0]),
    )


def test_a_step_clips_and_adds_what_is_sampled_and_noise():
    one = step()
    np.testing.assert_allclose(one.clipped(one.gradients)[:3], [[1.2, 1.6], [0.3, 0.4], [-1.2, 1.6]])
    np.testing.assert_allclose(one.rest, [-0.9, 2.0])
    np.testing.assert_allclose(one.sums["z"], [0.3, 3.6])
    np.testing.assert_allclose(one.sums["z′"], [-2.1, 0.4])
    np.testing.assert_allclose(one.released, [3.3, 0.6])
    assert np.linalg.norm(one.sums["z"] - one.sums["z′"]) == pytest.approx(2 * one.clipping_bound)


def test_the_four_drawings_show_the_numbers_of_the_step():
    figure, axes = plt.subplots(2, 2)
    one = step()
    drawings.four_steps(axes.flat, one)
    assert [ax.get_title() for ax in axes.flat] == ["1. sample", "2. clip", "3. sum", "4. add noise"]
    ends = [{tuple(np.round(text.xy, 6)) for text in ax.texts if hasattr(text, "xy")} for ax in axes.flat]
    assert ends[0] == {(3, 4), (-3, -4), (0.3, 0.4), (-6, 8), (7, 0)}
    assert ends[1] == {(1.2, 1.6), (-1.2, -1.6), (0.3, 0.4), (-1.2, 1.6)}
    assert ends[2] == {(0.3, 0.4), (-0.9, 2.0), (0.3, 3.6), (-2.1, 0.4)}
    marks = [tuple(np.ravel(line.get_data())) for line in axes.flat[3].lines]
    assert marks == [pytest.approx((0.3, 3.6)), pytest.approx((-2.1, 0.4)), pytest.approx((3.3, 0.6))]
    assert sorted({patch.radius for patch in axes.flat[3].patches}) == [3.0, 6.0]
    plt.close(figure)


def pieces(path):
    """Each element of an SVG: its name, its attributes without their numbers, and these numbers."""
    for element in ElementTree.parse(path).getroot().iter():
        if element.tag.startswith("{http://www.w3.org/2000/svg}"):
            about = {
                key: value for key, value in element.attrib.items() if key not in ("id", LINK) and "clip" not in key
            }
            words = {key: NUMBER.sub("", value) for key, value in about.items()}
            yield element.tag, words, [float(x) for x in NUMBER.findall(" ".join(about.values()))]


def numbers_in(path):
    return json.loads(next(ElementTree.parse(path).getroot().iter(DESCRIPTION)).text)


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.slow if name == "scenarios" else ()) for name in page_drawings.ALL]
)
def test_kept_drawings_are_what_the_code_draws(name, tmp_path):
    now = page_drawings.written(name, tmp_path)
    kept = IMAGES / f"{name}.svg"
    assert numbers_in(kept) == pytest.approx(now, rel=1e-3)
    if f"Matplotlib v{mpl.__version__}," not in kept.read_text():
        pytest.skip("the kept drawing is of another version of matplotlib, whose paths differ")
    kept, drawn = list(pieces(kept)), list(pieces(tmp_path / f"{name}.svg"))
    assert len(kept) == len(drawn) > 50
    for (tag, words, numbers), (tag_now, words_now, numbers_now) in zip(kept, drawn, strict=True):
        assert (tag, words) == (tag_now, words_now)
        np.testing.assert_allclose(numbers, numbers_now, atol=0.5)


def test_the_drawn_numbers_are_those_of_geometry():
    rows = numbers_in(IMAGES / "scenarios.svg")
    for scenario in ("S1", "S2"):
        assert rows[f"{scenario}: angle"] == pytest.approx(180)
        assert rows[f"{scenario}: apart"] == pytest.approx(2)
    for scenario in ("S4", "S5"):  # both gradients are longer than C, so both are clipped to it
        half = np.radians(rows[f"{scenario}: angle"]) / 2
        assert rows[f"{scenario}: apart"] == pytest.approx(2 * np.sin(half))
    assert 0 < rows["S6: apart"] < rows["S5: apart"] < rows["S3: apart"] < 2


def test_the_angles_are_those_of_the_records_own_gradients():
    import torch

    from dpsub import DPSGD, crafters, data, models

    task = data.digits(n_train=60)
    model, spec = models.linear(task), DPSGD(1.0, 2.0, 1.0, 20, 1e-2)
    pair = crafters.mislabeled(task, model, spec, seed=0)
    module = crafters.reference(task, model, spec, seed=0).module
    gradients = []
    for one in (pair.z, pair.z_prime):
        loss = torch.nn.functional.cross_entropy(module(torch.tensor(one.x)[None].double()), torch.tensor([one.y]))
        gradients.append(torch.cat([part.flatten() for part in torch.autograd.grad(loss, module.parameters())]).numpy())
    lengths = [np.linalg.norm(each) for each in gradients]
    of_z, of_other, cosine = page_drawings.geometry(pair, 2.0)
    assert cosine == pytest.approx(gradients[0] @ gradients[1] / np.prod(lengths))
    assert (of_z, of_other) == pytest.approx(tuple(min(1, length / 2.0) for length in lengths))
