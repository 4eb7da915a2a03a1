"""`AvUCTrainer`: `Trainer` with the AvUC loss."""

from __future__ import annotations

import copy
import functools
import math
from typing import Any

from torch import Tensor, nn
from transformers import Trainer, TrainingArguments
from transformers.loss.loss_utils import LOSS_MAPPING, ForCausalLMLoss
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from avuc.bayes import BayesianModule
from avuc.core.errors import InputError
from avuc.losses import AvUCLoss
from avuc.transformers.metrics import compute_metrics
from avuc.transformers.objective import AvUCObjective


class AvUCTrainer(Trainer):
    """`transformers.Trainer` that minimises cross-entropy + AvUC, for sequence and token classification.

    See `AvUCObjective` for what is computed. The model may be a posterior, `to_bayesian(model)`; the loss is then the
    negative ELBO + AvUC.

    Args:
        model: a Transformers model for classification, or `avuc.to_bayesian` of one.
        args: `TrainingArguments`.
        avuc: an `AvUCLoss`, or an `AvUCObjective`. Default None: `AvUCLoss()`, with a warm-up of 5 epochs.
        **kwargs: of `Trainer`; a `compute_loss_func` replaces the cross-entropy.

    >>> from transformers import BertConfig, BertForSequenceClassification
    >>> config = BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, intermediate_size=8)
    >>> trainer = AvUCTrainer(BertForSequenceClassification(config), avuc=AvUCLoss(beta=1.0, warmup_steps=100))
    >>> trainer.objective.avuc.warming_up
    True
    """

    objective: AvUCObjective

    def __init__(
        self,
        model: nn.Module | None = None,
        args: TrainingArguments | None = None,
        *,
        avuc: AvUCLoss | AvUCObjective | None = None,
        **kwargs: Any,
    ) -> None:
        loss = kwargs.pop("compute_loss_func", None)
        if isinstance(avuc, AvUCObjective):
            if loss is not None:
                raise InputError("AvUCTrainer: give compute_loss_func or an AvUCObjective, not both")
            self.objective = avuc
        else:
            self.objective = AvUCObjective(avuc, loss=loss)
        if isinstance(model, BayesianModule):
            args = _for_posterior(args)
        callbacks = [*(kwargs.pop("callbacks", None) or []), self.objective]
        super().__init__(model, args, compute_loss_func=self.objective, callbacks=callbacks, **kwargs)
        if isinstance(self.model, BayesianModule):
            # the posterior's forward takes any keyword, but the network inside may not
            self.model_accepts_loss_kwargs: bool = False
        inner = _original(self.model)
        if _predicts_next_token(inner):
            self.objective.shift_labels = True
        if self.objective.shift_labels:
            # Trainer finds it out for few models; for others it counts labels that no position predicts
            self._loss_shifts_labels: bool = True
            self.compute_metrics: Any = _with(self.compute_metrics, shift_labels=True)
        if getattr(getattr(inner, "config", None), "problem_type", None) == "multi_label_classification":
            self.objective.task = "multilabel"
            self.compute_metrics = _with(self.compute_metrics, task="multilabel")

    def training_step(self, *args: Any, **kwargs: Any) -> Tensor:
        """Run `Trainer.training_step`; the last step of an epoch may have fewer micro-batches than the others."""
        steps = getattr(self, "current_gradient_accumulation_steps", None)
        self.objective.micro_batches = steps or self.args.gradient_accumulation_steps
        return super().training_step(*args, **kwargs)

    def get_batch_samples(self, epoch_iterator: Any, *args: Any, **kwargs: Any) -> Any:
        """Return the micro-batches of a step and the number of labels in them.

        The first label of a row, which a causal language model does not predict, is left out. Older versions of
        `Trainer` count it, so the cross-entropy would be divided by too large a number.
        """
        if self.objective.shift_labels and self.objective.loss is None:
            epoch_iterator = map(_without_first_label, epoch_iterator)
        return super().get_batch_samples(epoch_iterator, *args, **kwargs)

    def get_decay_parameter_names(self, model: nn.Module) -> list[str]:
        """Return the names of the parameters with weight decay, without the ρ of a posterior: σ would go to 0.69."""
        posteriors = [name for name, module in model.named_modules() if isinstance(module, BayesianModule)]
        spared = {f"{name}.rho".removeprefix(".") for name in posteriors}
        return [name for name in super().get_decay_parameter_names(model) if name not in spared]

    def log(self, logs: dict[str, float], *args: Any, **kwargs: Any) -> None:
        """Log the threshold too, as soon as it is known."""
        threshold = float(self.objective.avuc.threshold)
        if "loss" in logs and math.isfinite(threshold):
            logs["avuc_threshold"] = threshold
        super().log(logs, *args, **kwargs)


def _with(function: Any, **options: Any) -> Any:
    """Return avuc's `compute_metrics` with these options where it has none; other functions as they are."""
    given = function.keywords if isinstance(function, functools.partial) else {}
    inner = function.func if isinstance(function, functools.partial) else function
    return functools.partial(compute_metrics, **options | given) if inner is compute_metrics else function


def _for_posterior(args: TrainingArguments | None) -> TrainingArguments:
    """Return arguments for a module whose `forward` takes any keyword: its signature names no columns."""
    args = TrainingArguments("trainer_output") if args is None else copy.copy(args)
    if args.gradient_checkpointing:
        raise InputError(
            "AvUCTrainer: gradient_checkpointing cannot run layers again with sampled weights; leave it out. If only "
            "the last layer is sampled, call gradient_checkpointing_enable() on the model before to_bayesian"
        )
    args.remove_unused_columns = False
    if args.label_names is None:
        args.label_names = ["labels"]
    return args


def _without_first_label(batch: Any) -> Any:
    """Return a batch of a causal language model in which the first label of each row is ignored."""
    labels = batch.get("labels")
    if not isinstance(labels, Tensor) or labels.ndim != 2:
        return batch
    labels = labels.clone()
    labels[:, :1] = -100
    return {**batch, "labels": labels}


def _original(model: Any) -> Any:
    """Return the model of Transformers inside a posterior and an adapter."""
    inner: Any = model.module if isinstance(model, BayesianModule) else model
    return inner.get_base_model() if hasattr(inner, "get_base_model") else inner


def _predicts_next_token(model: Any) -> bool:
    """Return whether a model's own loss shifts the labels: causal language models, also with images, and subclasses."""
    known = set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES.values())
    if type(model).__name__ in known:
        return True
    if getattr(getattr(model, "config", None), "is_encoder_decoder", False):
        return False
    loss = LOSS_MAPPING.get(getattr(model, "loss_type", None) or "")
    # the name of a user's class need not say which loss it has
    return any(parent.__name__ in known for parent in type(model).__mro__) if loss is None else loss is ForCausalLMLoss
