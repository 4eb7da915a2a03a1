"""What the pages say about the baselines and about the ResNet-56 past the paper, against the committed rows."""

from __future__ import annotations

import tomllib
from pathlib import Path

import make_reproduction as make
import past
import pytest
import reproduction_past
from reproduction_best import best_single
from reproduction_seeds import by_seed
from scipy import stats

from avuc.report.study.paper_comparison import published_value

CHOSEN = tomllib.loads((Path(make.HERE) / "reproduction.toml").read_text(encoding="utf-8"))["past"]["row"]


@pytest.fixture(scope="module")
def studies(published_studies):
    return published_studies


def printed_mean(printed, method, metric):
    wanted = {"table": "quartiles", "dataset": "cifar10", "statistic": "mean", "intensity": "5"}
    return published_value(printed, method=method, metric=metric, **wanted)


def change_over_seeds(study, first, second, metric, where):
    """Return the sign of the difference if its 95 % interval over five paired seeds excludes zero, else 0."""
    values = [by_seed(study, name, metric, where) for name in (first, second)]
    assert sorted(values[0]) == sorted(values[1]) == list(range(5))
    changes = [values[0][seed] - values[1][seed] for seed in values[0]]
    low, high = stats.t.interval(0.95, 4, loc=sum(changes) / 5, scale=stats.sem(changes))
    return 1 if low > 0 else -1 if high < 0 else 0


def test_the_rule_chooses_the_method_that_is_named(studies):
    choice = studies["past-choice"]
    assert past.chosen(lambda *asked: choice.get(*asked).value) == CHOSEN
    assert len(past.candidates()) == 18


def test_only_the_chosen_candidate_and_what_it_is_compared_with_have_test_figures(studies):
    evaluated = set(studies["past"].results.names)
    assert evaluated & set(past.candidates()) <= set(past.evaluated(CHOSEN))
    assert evaluated & set(past.candidates()) == {CHOSEN, "SGD + TS", "MOPED 0.15, AvUC + TS"}


def test_the_choice_says_nothing_about_avuc(studies):
    choice = studies["past-choice"]
    losses = {name: choice.get(name, "nll", "5").value for name in past.candidates() if "AvUC" not in name}
    best = min(value for name, value in losses.items() if choice.get(name, "ece", "clean").value <= past.CLEAN_ECE)
    assert best - choice.get(CHOSEN, "nll", "5").value == pytest.approx(0.001, abs=0.0005)


def test_targets_by_hand(studies):
    study = studies["past"]
    met = {}
    for target in reproduction_past.targets(studies, CHOSEN):
        value = study.get(CHOSEN, target.metric, target.where, target.statistic).value
        met[target.title, target.bound] = target.met(value)
    assert [title for (title, _), reached in met.items() if not reached] == ["ρ of ECE", "AUROC, SVHN"]
    assert len(met) == 10
    values = [study.get(CHOSEN, metric, "5").value for metric in ("ece", "nll", "accuracy")]
    assert values[0] <= 0.04
    assert values[1] <= 0.8
    assert values[2] >= 0.72
    assert study.get(CHOSEN, "auroc", "svhn").value < 0.96


@pytest.mark.parametrize(
    ("metric", "where", "sign"),
    [
        *(("ece", "5", -1), ("auroc", "svhn", 1), ("auroc", "cifar100", 1), ("uce", "5", 1), ("ece", "clean", 1)),
        *(("nll", "5", 0), ("brier", "5", 0), ("accuracy", "5", 0)),
    ],
)
def test_what_the_posterior_changes_over_five_paired_seeds(studies, metric, where, sign):
    assert change_over_seeds(studies["past"], CHOSEN, "SGD + TS", metric, where) == sign


@pytest.mark.parametrize(
    ("posterior", "metric", "where", "sign"),
    [
        *((CHOSEN, metric, "5", sign) for metric, sign in (("nll", -1), ("accuracy", 1), ("brier", -1), ("uce", -1))),
        *((CHOSEN, *rest) for rest in (("ece", "5", 1), ("auroc", "svhn", 0))),
        *(("MOPED 0.15, AvUC + TS", *rest) for rest in (("nll", "5", -1), ("accuracy", "5", 1))),
        *(("MOPED 0.15, AvUC + TS", *rest) for rest in (("ece", "5", 0), ("auroc", "svhn", 0))),
    ],
)
def test_what_dropout_changes_against_a_posterior_over_five_paired_seeds(studies, posterior, metric, where, sign):
    assert change_over_seeds(studies["past"], "Dropout + TS", posterior, metric, where) == sign


def test_dropout_just_misses_the_target_of_ece(studies):
    assert 0.04 < studies["past"].get("Dropout + TS", "ece", "5").value < 0.042


def test_the_ensemble_is_better_in_what_the_page_says(studies):
    study = studies["past"]
    for metric, better in (("nll", min), ("brier", min), ("accuracy", max)):
        values = [study.get(name, metric, "5").value for name in ("Ensemble + TS", CHOSEN)]
        assert better(values) == values[0]
    assert study.get("Ensemble + TS", "ece", "5").value <= study.get(CHOSEN, "ece", "5").value


def test_the_best_other_network_is_found_by_hand(studies):
    known = {}
    for name in ("best", "factorial"):
        for method in studies[name].results.names:
            known[name, method] = studies[name].get(method, "auroc", "svhn").value
    study, method = max(known, key=known.__getitem__)
    value, about = best_single(studies, ("best", "factorial"), "svhn", lambda study, row: False)
    assert (value, about) == (known[study, method], f"{method} of {study}")


def test_baselines_come_nearer_with_the_published_settings(studies, printed):
    for metric in ("ece", "nll"):
        was = printed_mean(printed, "Vanilla", metric)
        published, schedule = (studies[name].get("Vanilla", metric, "5").value for name in ("baselines", "paper"))
        assert was < published < schedule


def test_what_the_page_says_about_each_baseline(studies, printed):
    study = studies["baselines"]
    assert min(study.get("Vanilla", "ece", "5").by_seed) > printed_mean(printed, "Vanilla", "ece")
    for metric in ("ece", "uce", "nll", "brier"):
        assert study.get("LL-Dropout", metric, "5").value == pytest.approx(
            printed_mean(printed, "LL-Dropout", metric), rel=0.05
        )
        for method in ("Vanilla", "Temp scaling", "Ensemble", "LL-SVI"):
            assert study.get(method, metric, "5").value > printed_mean(printed, method, metric)
        assert study.get("Dropout", metric, "5").value < printed_mean(printed, "Dropout", metric)
    assert study.get("Vanilla", "ece", "5").seeds == 10
    assert "+" not in "".join(run.revision or "+" for run in study.effort.runs)


def test_members_of_an_ensemble_that_are_seeds_of_another_method_count_once(studies):
    """Ten Vanilla networks, one each of Dropout, LL-Dropout and LL-SVI; five networks, their posteriors, Dropout."""
    assert studies["baselines"].effort.models == 13
    assert studies["past"].effort.models == 15
    assert studies["paper"].effort.models == 20  # its ensemble is trained by itself
    recipe = studies["baselines"].recipe
    images = 13 * recipe.train.epochs * 40_000
    assert studies["baselines"].effort.trained_images == pytest.approx(images, rel=0.01)
