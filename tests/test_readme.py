import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text()


def test_the_example_runs_and_says_what_it_should(capsys):
    (example,) = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert len([line for line in example.splitlines() if line.strip()]) <= 10
    exec(compile(example, "README.md", "exec"), {})
    membership, label, shown = (float(x) for x in re.findall(r"ε [=≥] ([\d.]+)", capsys.readouterr().out))
    assert membership < shown < label
    assert abs(label - 3.99) < 0.01


def test_links_lead_to_files():
    for target in re.findall(r"\]\(([^)]+)\)", README):
        assert (ROOT / target).exists(), target


def test_commands_are_targets():
    targets = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE)
    for command in re.findall(r"(?:^|`)make ([a-z-]+)", README, flags=re.MULTILINE):
        assert command in targets, command
