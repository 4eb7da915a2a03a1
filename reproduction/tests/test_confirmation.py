"""The claims that are tested again are those of the published studies; the analysis says what is confirmed."""

from __future__ import annotations

import math
import re
from pathlib import Path

import confirmation
import pytest
import reproduction_seeds as seeds
from make_reproduction import read_study

from avuc.study.recipe.load import load_recipe, parse_recipe

HOME = Path(__file__).parents[1]
# recipe of the claims → the published study that they come from
PUBLISHED = {
    "claims-noise": "factorial",
    "claims-printed": "factorial",
    "claims-tenth": "factorial-tenth",
    "claims-noisy-labels": "factorial-noisy-labels",
}


@pytest.mark.parametrize("name", confirmation.recipes())
def test_recipes_are_those_of_the_factorial_with_new_seeds(name):
    text = confirmation.recipes()[name]
    assert (HOME / "recipes" / f"{name}.toml").read_text(encoding="utf-8") == text
    recipe, base = parse_recipe(text), load_recipe(HOME / "recipes" / f"{PUBLISHED[name]}.toml")
    assert not set(recipe.study.seeds) & set(base.study.seeds)
    assert len(recipe.study.seeds) == 5
    assert (recipe.study.severities, recipe.study.samples) == ((1, 2, 3, 4, 5), 128)
    assert (recipe.data, recipe.net, recipe.train) == (base.data, base.net, base.train)
    assert recipe.study.others == base.study.others
    for method in recipe.methods:
        assert method == base.method(method.name)
    compared = {
        method for claim in confirmation.CLAIMS if claim.study == name for method in (claim.first, claim.second)
    }
    assert compared <= {method.name for method in recipe.methods}


def test_the_claims_are_what_the_published_seeds_show():
    studies = {name: read_study(name, HOME / "results" / "cifar10" / name) for name in sorted(set(PUBLISHED.values()))}
    assert {claim.study for claim in confirmation.CLAIMS} == set(PUBLISHED)
    for claim in confirmation.CLAIMS:
        study = studies[PUBLISHED[claim.study]]
        values = [seeds.by_seed(study, name, claim.metric, claim.where) for name in (claim.first, claim.second)]
        difference, count = seeds.shared_difference(*values)
        assert count == 5
        assert claim.confirmed(difference.low, difference.high), claim


@pytest.mark.parametrize(
    ("sign", "low", "high", "confirmed"),
    [
        (1, 0.001, 0.2, True),
        (1, -0.001, 0.2, False),
        (1, -0.2, -0.1, False),
        (-1, -0.2, -0.1, True),
        (-1, -0.2, 0.001, False),
        (0, -0.04, 0.3, True),
        (0, -0.06, 0.3, False),
        (1, math.nan, math.nan, False),
        (-1, math.nan, math.nan, False),
        (0, math.nan, math.nan, False),
    ],
)
def test_what_confirms_a_claim(sign, low, high, confirmed):
    assert confirmation.Claim("study", "a", "b", "nll", "5", sign).confirmed(low, high) is confirmed


def test_analysis(tmp_path, capsys, make_up, remove):
    """A finished study beside plain loops; an unfinished one and missing ones are named."""
    for name in ("claims-noise", "claims-tenth"):
        make_up(tmp_path / name, HOME / "recipes" / f"{name}.toml")
    remove(tmp_path / "claims-tenth", "method='Adam, none, monotone + TS' AND seed=7 AND severity=5")
    confirmation.main(["--analyse", str(tmp_path)])
    lines = [line.split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| claims")]
    assert len(lines) == len(confirmation.CLAIMS)
    finished = [line for line in lines if "not finished" not in line]
    # the last two are AUROC, which needs no intensity
    assert [line[0] for line in finished] == ["| claims-noise"] * 2 + ["| claims-tenth"] * 2
    study = read_study("claims-noise", tmp_path / "claims-noise")
    for line, metric in zip(finished[:2], ("ece", "nll"), strict=True):
        values = [seeds.by_seed(study, f"Adam, noise, {loss}", metric, "5") for loss in ("monotone", "none")]
        mean = sum(values[0][seed] - values[1][seed] for seed in confirmation.SEEDS) / 5
        shown, low, high = (float(text.replace("−", "-")) for text in re.findall(r"[+−]?[0-9.]+", line[4]))
        assert shown == pytest.approx(mean, abs=0.006)
        assert line[-1].strip(" |") == ("yes" if high < 0 else "no")
        assert low < shown < high
        assert line[5] != line[4]
