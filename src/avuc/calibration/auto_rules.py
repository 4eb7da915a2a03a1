"""When `AutoCalibrator` has too few rows, and what it says about its choice."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from avuc.calibration.metric_change import NORMAL
from avuc.calibration.race import BLEND, NONE, Race
from avuc.calibration.rows import Rows

# with fewer rows than this, in total or per class, calibrators with many parameters are not tried
FEW_ROWS, FEW_ROWS_PER_CLASS = 200, 20
# with fewer rows or groups nothing is changed
LEAST_ROWS = 20
LEAST_GROUPS = 10
# a fit with a number for each pair of classes takes time in rows × classes²
PAIRWISE = ("matrix", "loose-matrix", "dirichlet")
MOST_PAIRWISE = 32


def too_few(rows: Rows) -> str:
    """Return why nothing can be learned from these rows; an empty text if something can."""
    many = f"{len(rows)} row{'s' * (len(rows) != 1)}"
    if len(rows) < LEAST_ROWS:
        return f"{many} {'is' if len(rows) == 1 else 'are'} too few to choose a calibrator; give at least {LEAST_ROWS}"
    if int(rows.labels.min()) == int(rows.labels.max()):
        return f"all {many} have the same label; give rows of at least two classes"
    groups = LEAST_GROUPS if rows.groups is None else len(rows.groups.unique())
    return f"{groups} groups are too few; give at least {LEAST_GROUPS}" if groups < LEAST_GROUPS else ""


def few_rows(rows: Rows) -> str:
    """Return why there are too few rows for many parameters; an empty text if there are enough."""
    classes = rows.logits.shape[-1]
    if len(rows) < FEW_ROWS:
        return f"{len(rows)} rows are fewer than {FEW_ROWS}"
    if len(rows) < FEW_ROWS_PER_CLASS * classes:
        return f"{len(rows)} rows are fewer than {FEW_ROWS_PER_CLASS} for each of {classes} classes"
    return ""


def most_rows(rows: Rows, most: int, elements: int) -> int:
    return min(most, elements // max(1, rows.logits.numel() // len(rows)))


def costly(classes: int) -> str:
    return f"not tried: its time grows with classes², and {classes} are more than {MOST_PAIRWISE}"


def sentence(race: Race, winner: str, best: str, weights: Mapping[str, float], refused: Sequence[str]) -> str:
    """Return what is used and why.

    Args:
        race: after its run.
        winner: the candidate that is used.
        best: the candidate with the lowest NLL.
        weights: of the calibrators in the winner.
        refused: candidates that the guard has refused.
    """
    change, error = race.difference(winner, NONE)
    rest, used = "", winner
    if len(weights) > 1:
        parts = sorted(((weight, name) for name, weight in weights.items()), reverse=True)
        used = f"{BLEND} of {' + '.join(f'{100 * weight:.0f} % {name}' for weight, name in parts)}"
    if best != winner:
        more, spread = race.difference(best, winner)
        rest = f"; {best} is {abs(more):.4f} lower (standard error {spread:.4f}), and {winner} is preferred"
    if race.runners[winner].share < 1:
        rest += f"; {winner} alone would make held-out rows worse"
    if refused:
        rest += f"; {' and '.join(refused)} would make held-out rows worse"
    verb = "falls" if change < 0 else "changes"
    return (
        f"{used}: NLL of held-out rows {verb} from {race.mean(NONE):.4f} to {race.mean(winner):.4f} (95 % interval "
        f"of the change {change - NORMAL * error:+.4f} to {change + NORMAL * error:+.4f}){rest}."
    )
