"""One-line errors for a training that cannot go on."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor, nn

from avuc.core.errors import InputError
from avuc.data.stream import Stream
from avuc.data.tensors import MemoryData
from avuc.prediction.arguments import Arguments
from avuc.prediction.checks import MISFITS, TYPE_MISFITS, WRONG_CALLS
from avuc.prediction.in_memory import SEVERAL
from avuc.training.distributed import Ranks
from avuc.training.run import Run
from avuc.training.steps import Diverged


def diverged(error: Diverged, run: Run, epoch: int) -> InputError:
    """Return the error of a run whose loss became NaN or infinite."""
    saved = "there is no checkpoint" if run.saved is None else f"the last good checkpoint is {run.saved}"
    return InputError(
        f"training {run.job.method.name} (seed {run.job.seed}, model {error.trainer.index}): epoch {epoch}, "
        f"{error}; {saved}; a lower learning_rate, clip_norm or precision float32 may help"
    )


def rank_lost(error: Exception, ranks: Ranks, checkpoint: Path | None, epoch: int) -> InputError:
    """Return the error of a rank that stopped, most likely because another one did."""
    saved = "there is no checkpoint yet" if checkpoint is None else f"the last checkpoint is {checkpoint}"
    reason = str(error).splitlines()[0][:160] if str(error) else type(error).__name__
    return InputError(
        f"rank {ranks.rank} of {ranks.size} stopped in epoch {epoch} ({reason}): most likely another "
        f"rank has died; {saved}: run the same command again, with any number of ranks"
    )


def misfit(error: Exception, model: nn.Module, data: MemoryData | Stream) -> InputError | None:
    """Return a one-line error if torch's or Python's error means that the network does not fit the data, else None.

    Args:
        error: what a step raised.
        model: the model.
        data: the training data.
    """
    if isinstance(data, Stream):
        return None
    text = " ".join(str(error).split())
    inputs = Arguments.of(data.inputs)
    found = f"data: the network cannot take {inputs.describe().replace('images', 'inputs', 1)} ({text[:160]})"
    if isinstance(error, TypeError):
        return InputError(f"{found}; {SEVERAL}") if any(words in text for words in WRONG_CALLS) else None
    if "sparse" in text.lower():
        return InputError(
            f"net: a layer has sparse gradients, such as nn.Embedding(sparse=True), which are not trained here "
            f"({text[:160]}); use sparse=False"
        )
    if not any(words in text for words in MISFITS):
        return None
    floats = {weight.dtype for weight in model.parameters() if weight.is_floating_point()}
    only = inputs.only
    about_type = any(words in text for words in TYPE_MISFITS) and not inputs.scaled
    if about_type and isinstance(only, Tensor) and len(floats) == 1 and only.dtype not in floats:
        kind = str(next(iter(floats)))
        return InputError(f"{found}; its weights are {kind}: convert the inputs with .to({kind})")
    return InputError(f"{found}; give the inputs in the shape and type that the network takes")
