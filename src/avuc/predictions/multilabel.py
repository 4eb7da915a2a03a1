"""`MultiLabelPredictions`: several independent yes-or-no labels for each row."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import InitVar, dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import Tensor

from avuc import uncertainty
from avuc.core.arrays import as_tensor
from avuc.core.display import Displayed
from avuc.core.errors import InputError
from avuc.core.frames import check_same_rows
from avuc.core.tasks import IGNORE_INDEX, binary_rows, multilabel_rows
from avuc.core.tensor_file import read_tensors, write_tensors
from avuc.predictions.display import decision_frame, decision_table
from avuc.predictions.file_names import check_file_name
from avuc.predictions.multiclass import Predictions
from avuc.predictions.rows import MANY_ROWS, HasTransform, check_calibrator_kind

FORMAT = "avuc.multilabel-predictions.v1"
# elements of one block of sigmoids: bounds the working memory
BLOCK = 1 << 22


@dataclass(frozen=True, eq=False, repr=False)
class MultiLabelPredictions(Displayed):
    """Probabilities of L independent labels for each of N rows, averaged over posterior samples.

    Each decision, one label of one row, is a binary prediction with the probabilities [1 − p, p]. `label` returns those
    of one label and `flatten` all of them, as `Predictions` that every metric reads.

    Args:
        probs: (N, L) probabilities that a label applies, the mean of the samples' sigmoids; rows need not sum to 1.
        labels: (N, L) of 0 and 1. Default None: no labels.
        expected_entropy: (N, L) mean of the samples' binary entropies in nats. Default None: the entropy of `probs`.
        samples: number of posterior samples in the mean (default 1).
        names: of the labels, L texts. Default None: no names.
        ignore_index: decisions with this label are unknown and left out (default −100); None: none is.

    >>> p = MultiLabelPredictions([[0.9, 0.2], [0.6, 0.4]], [[1, 0], [0, -100]], names=["cat", "dog"])
    >>> len(p), p.num_labels, len(p.flatten()), p.label("dog").correct
    (2, 2, 3, tensor([True]))
    """

    probs: Tensor
    labels: Tensor = None  # type: ignore[assignment]  # filled in below
    expected_entropy: Tensor = None  # type: ignore[assignment]
    samples: int = 1
    names: Sequence[str] | None = None
    ignore_index: InitVar[int | None] = IGNORE_INDEX

    def __post_init__(self, ignore_index: int | None) -> None:
        check_same_rows(self.probs, self.labels, ("probs", "labels"))
        probs = as_tensor(self.probs, "probs").detach()
        if not probs.is_floating_point() or probs.ndim != 2 or probs.shape[1] == 0:
            description = f"{tuple(probs.shape)} {probs.dtype}"
            raise InputError(f"multi-label probs must be floating-point numbers of shape (N, L), found {description}")
        probs = probs if probs.dtype in (torch.float32, torch.float64) else probs.float()
        pairs = binary_rows(probs, "probs")
        user_labels = cast("Tensor | None", self.labels)
        if user_labels is None:
            labels = torch.full(probs.shape, -1, device=probs.device)
        else:
            known = multilabel_rows(probs, user_labels, kind="probs", ignore_index=ignore_index)
            labels = torch.full((probs.numel(),), IGNORE_INDEX, device=probs.device)
            where = slice(None) if known.positions is None else known.positions.to(probs.device)
            labels[where] = cast("Tensor", known.labels).to(probs.device)
            labels = labels.reshape(probs.shape)
        if self.samples < 1:
            raise InputError(f"samples must be at least 1, found {self.samples}")
        expected = cast("Tensor | None", self.expected_entropy)
        if expected is None and self.samples > 1:
            raise InputError("expected_entropy is needed for the mean of more than one sample; use from_samples")
        expected = uncertainty.entropy(pairs) if expected is None else as_tensor(expected, "expected_entropy").detach()
        if expected.shape != probs.shape or not bool(expected.isfinite().all()):
            raise InputError(f"expected_entropy must be finite numbers of shape {tuple(probs.shape)}")
        names = None if self.names is None else tuple(map(str, self.names))
        if names is not None and len(names) != probs.shape[1]:
            raise InputError(f"names must have one entry for each of {probs.shape[1]} labels, found {len(names)}")
        object.__setattr__(self, "probs", probs)
        object.__setattr__(self, "labels", labels)
        object.__setattr__(self, "expected_entropy", expected.to(probs.device, probs.dtype))
        object.__setattr__(self, "names", names)

    def __len__(self) -> int:
        return len(self.probs)

    @property
    def num_labels(self) -> int:
        """Number of labels L."""
        return self.probs.shape[1]

    @classmethod
    def from_logits(
        cls,
        logits: Any,
        labels: Any = None,
        *,
        calibrator: HasTransform | None = None,
        names: Sequence[str] | None = None,
        check: bool = True,
        ignore_index: int | None = IGNORE_INDEX,
    ) -> MultiLabelPredictions:
        """Return the predictions of one network.

        Args:
            logits: (N, L).
            labels: (N, L) of 0 and 1. Default None: no labels.
            calibrator: its `transform` is applied to the logits. Default None: no calibration.
            names: of the labels. Default None: no names.
            check: whether logits that look like probabilities are refused (default True).
            ignore_index: decisions with this label are left out (default −100); None: none is.

        >>> MultiLabelPredictions.from_logits([[2.0, 0.0]], [[1, 1]]).probs
        tensor([[0.8808, 0.5000]], dtype=torch.float64)
        """
        check_same_rows(logits, labels, ("logits", "labels"))
        tensor = as_tensor(logits, "logits")
        if tensor.ndim != 2:
            raise InputError(
                f"logits must have shape (N, L), found {tuple(tensor.shape)}; from_samples takes (S, N, L)"
            )
        options: dict[str, Any] = {"names": names, "check": check, "ignore_index": ignore_index}
        return cls.from_samples(tensor[None], labels, calibrator=calibrator, **options)

    @classmethod
    def from_samples(
        cls,
        sample_logits: Any,
        labels: Any = None,
        *,
        calibrator: HasTransform | None = None,
        names: Sequence[str] | None = None,
        check: bool = True,
        ignore_index: int | None = IGNORE_INDEX,
    ) -> MultiLabelPredictions:
        """Return the predictions of S posterior samples: p = (1/S) Σ_s sigmoid(z_s).

        Args:
            sample_logits: (S, N, L).
            labels: (N, L) of 0 and 1. Default None: no labels.
            calibrator: its `transform` is applied to the logits of each sample. Default None: no calibration.
            names: of the labels. Default None: no names.
            check: whether logits that look like probabilities are refused (default True).
            ignore_index: decisions with this label are left out (default −100); None: none is.

        >>> MultiLabelPredictions.from_samples(torch.tensor([[[9.0]], [[-9.0]]]), [[1]]).probs
        tensor([[0.5000]], dtype=torch.float64)
        """
        check_calibrator_kind(calibrator, multilabel=True)
        logits = as_tensor(sample_logits, "logits").detach()
        if logits.ndim != 3 or 0 in (logits.shape[0], logits.shape[2]):
            raise InputError(f"logits of samples must have shape (S, N, L), found {tuple(logits.shape)}")
        if not logits.is_floating_point():
            raise InputError(f"logits must be floating-point, found {logits.dtype}")
        if check and logits.numel() >= MANY_ROWS and bool(((logits >= 0) & (logits <= 1)).all()):
            raise InputError(
                "these logits look like probabilities (all of them are from 0 to 1): give probabilities to "
                "MultiLabelPredictions(probs, labels), or pass check=False if these are logits"
            )
        # float32 has no number between 1 − 6e-8 and 1, so 1 − p would be 0 from a logit of 17 on
        dtype = torch.float32 if logits.device.type == "mps" else torch.float64
        probs, expected = torch.zeros(2, *logits.shape[1:], dtype=dtype, device=logits.device)
        step = max(1, BLOCK // (logits.shape[0] * logits.shape[2]))
        for start in range(0, logits.shape[1], step):
            some = slice(start, start + step)
            block = logits[:, some] if calibrator is None else calibrator.transform(logits[:, some])
            each = block.to(dtype).sigmoid()
            if bool(each.isnan().any()):
                raise InputError("logits contain NaN: remove or repair these rows")
            probs[some] = each.mean(0)
            expected[some] = uncertainty.entropy(torch.stack((1 - each, each), -1)).mean(0)
        return cls(probs, labels, expected, len(logits), names, ignore_index)

    def label(self, which: int | str) -> Predictions:
        """Return the known decisions of one label as binary predictions.

        Args:
            which: number or name of the label.

        >>> MultiLabelPredictions([[0.9, 0.2]], [[1, 0]]).label(0).probs
        tensor([[0.1000, 0.9000]], dtype=torch.float64)
        """
        if isinstance(which, str):
            if which not in (self.names or ()):
                raise InputError(f"there is no label named {which!r}; names are {self.names}")
            which = list(cast("Sequence[str]", self.names)).index(which)
        if not -self.num_labels <= which < self.num_labels:
            raise InputError(f"there is no label {which}; there are {self.num_labels}")
        columns = self.probs[:, which], self.labels[:, which], self.expected_entropy[:, which]
        return Predictions(*columns, self.samples)

    def flatten(self) -> Predictions:
        """Return all known decisions as binary predictions; their `shape` is (N, L).

        >>> MultiLabelPredictions([[0.9, 0.2]], [[1, -100]]).flatten().probs
        tensor([[0.1000, 0.9000]], dtype=torch.float64)
        """
        known = self.labels.flatten() != IGNORE_INDEX
        every = bool(known.all())
        where: Any = slice(None) if every else known
        return Predictions(
            binary_rows(self.probs.flatten()[where], "probs"),
            self.labels.flatten()[where],
            self.expected_entropy.flatten()[where],
            self.samples,
            shape=tuple(self.probs.shape),
            positions=None if every else known.nonzero()[:, 0],
        )

    def to_frame(self) -> Any:
        """Return a pandas DataFrame with a row for each known decision: row, name, and those of `Predictions.to_frame`.

        >>> MultiLabelPredictions([[0.9, 0.2]], [[1, 1]], names=["cat", "dog"]).to_frame()["correct"].tolist()
        [True, False]
        """
        return decision_frame(self)

    def _facts(self) -> dict[str, Any]:
        facts = self.flatten()._facts()
        del facts["classes"], facts["shape"]
        return {"rows": len(self), "labels": self.num_labels, "decisions": facts.pop("rows")} | facts

    def _table(self) -> tuple[Sequence[str], list[tuple[Any, ...]]]:
        return decision_table(self)

    def to(self, device: torch.device | str) -> MultiLabelPredictions:
        """Return the same predictions on another device."""
        labels = None if bool((self.labels == -1).all()) else self.labels.to(device)
        return MultiLabelPredictions(
            self.probs.to(device), cast("Tensor", labels), self.expected_entropy.to(device), self.samples, self.names
        )

    def save(self, path: str | Path) -> None:
        """Write one .safetensors file, atomically; names of another format, such as p.npz, are refused."""
        check_file_name(path)
        tensors = {"probs": self.probs, "labels": self.labels, "expected_entropy": self.expected_entropy}
        metadata = {"format": FORMAT, "samples": str(self.samples)}
        if self.names is not None:
            metadata["names"] = json.dumps(list(self.names))
        write_tensors(path, tensors, metadata)

    @classmethod
    def load(cls, path: str | Path) -> MultiLabelPredictions:
        """Return predictions from a file written by `save`."""
        tensors, metadata = read_tensors(path)
        samples = metadata.get("samples", "")
        missing = {"probs", "labels", "expected_entropy"} - set(tensors)
        if metadata.get("format") != FORMAT or not samples.isdecimal() or len(samples) > 9 or missing:
            raise InputError(
                f"{path}: not a file of MultiLabelPredictions (format {FORMAT}); MultiLabelPredictions.save writes one"
            )
        try:
            labels = tensors["labels"]
            if labels.numel() and bool((labels == -1).all()):
                labels = cast("Tensor", None)
            names = json.loads(metadata["names"]) if "names" in metadata else None
            if names is not None and not isinstance(names, list):
                raise InputError("names must be a list")
            return cls(tensors["probs"], labels, tensors["expected_entropy"], int(samples), names)
        except ValueError as problem:  # an InputError is one, and so is damaged JSON
            raise InputError(f"{path}: {problem}") from problem
