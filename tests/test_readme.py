import re
from pathlib import Path

import pytest
import torch
from opacus.optimizers import DPOptimizer

from dpsub.opacus import SubstitutePRVAccountant

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


EXAMPLES = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)


def test_the_example_runs_and_says_what_it_should(capsys):
    example, _, _ = EXAMPLES
    assert len([line for line in example.splitlines() if line.strip()]) <= 10
    exec(compile(example, "README.md", "exec"), {})
    membership, label, shown = (float(x) for x in re.findall(r"ε [=≥] ([\d.]+)", capsys.readouterr().out))
    assert membership < shown < label
    assert abs(label - 3.99) < 0.01


@pytest.mark.filterwarnings("default")
def test_the_example_with_opacus_states_both_epsilons(capsys):
    _, example, _ = EXAMPLES
    training = "engine.accountant.step(noise_multiplier=1.0, sample_rate=0.1)\n"
    exec(compile(example.replace("...\n", training), "README.md", "exec"), {})
    text = capsys.readouterr().out.replace("\n", " ")
    assert "add/remove adjacency" in text
    assert "substitute adjacency" in text


def test_the_example_of_an_audit_reports(capsys):
    _, _, example = EXAMPLES
    weights = torch.nn.Parameter(torch.zeros(50))
    optimizer = DPOptimizer(
        torch.optim.SGD([weights], lr=0.1), noise_multiplier=1.0, max_grad_norm=1.0, expected_batch_size=4
    )
    optimizer.attach_step_hook(SubstitutePRVAccountant().get_optimizer_hook_fn(sample_rate=0.1))

    def training():
        weights.grad_sample = torch.ones(4, 50)
        optimizer.step()

    code = re.sub(r"^\.\.\. .*$", "training()", example, flags=re.MULTILINE)
    exec(compile(code, "README.md", "exec"), {"optimizer": optimizer, "training": training})
    assert "is consistent so far" in capsys.readouterr().out


def test_links_lead_to_files():
    for target in re.findall(r"\]\(([^)]+)\)", README):
        assert (ROOT / target).exists(), target


def test_commands_are_targets():
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    for command in re.findall(r"(?:^|`)make ([a-z-]+)", README, flags=re.MULTILINE):
        assert command in targets, command
