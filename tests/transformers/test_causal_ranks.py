"""Two processes give the weights, the threshold and the figures of one process with the whole batch."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from transformers import Trainer, TrainingArguments

from avuc.transformers import use_linear_avuc

from .conftest import Sentences, language_model, trained

RUN = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
import torch
from conftest import Sentences, language_model
from transformers import Trainer, TrainingArguments
from avuc.transformers import use_linear_avuc

class InOrder(Trainer):
    def _get_train_sampler(self, *args):
        return torch.utils.data.SequentialSampler(self.train_dataset)

torch.set_num_threads(1)
ranks = int(os.environ["WORLD_SIZE"])
args = TrainingArguments(
    sys.argv[2], report_to="none", use_cpu=True, max_steps=5, save_strategy="no", disable_tqdm=True, optim="sgd",
    learning_rate=0.1, lr_scheduler_type="constant", per_device_train_batch_size=12 // ranks, logging_steps=5,
    gradient_accumulation_steps=2, per_device_eval_batch_size=6 // ranks, max_grad_norm=0.0,
    average_tokens_across_devices=sys.argv[3] == "average", dataloader_pin_memory=False,
)
model = language_model("llama")
callback = use_linear_avuc(model, warmup_steps=4)
data = {"train_dataset": Sentences(120), "eval_dataset": Sentences(13, seed=1)}  # 13: rows are repeated
trainer = InOrder(model, args, callbacks=[callback], **data)
trainer.train()
found = trainer.evaluate()
if args.process_index == 0:
    weights = torch.cat([p.detach().flatten() for p in model.parameters()])
    logged = next(entry for entry in trainer.state.log_history if "token_ece" in entry)
    figures = {k: v for k, v in (found | logged).items() if "token_" in k}
    print("RESULT", json.dumps([callback.threshold, figures, weights.tolist()]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("average", ["average", "local"])
def test_two_ranks_are_one_process(tmp_path: Path, average: str) -> None:
    (one, figures, expected), (two, same, found) = (trained(RUN, tmp_path, ranks, average) for ranks in (1, 2))
    assert two == pytest.approx(one, rel=1e-5)
    assert found == pytest.approx(expected, rel=1e-3, abs=1e-5)
    assert same == pytest.approx(figures, rel=1e-3)
    assert {"eval_token_ece", "token_ece", "token_avu"} <= figures.keys()


def evaluated(folder: Path, rows: int, batch: int) -> dict[str, float]:
    torch.set_num_threads(1)
    args = TrainingArguments(
        str(folder / "out"), report_to="none", use_cpu=True, disable_tqdm=True, per_device_eval_batch_size=batch,
        dataloader_pin_memory=False,
    )  # fmt: skip
    model = language_model("llama")
    callback = use_linear_avuc(model, threshold=3.3)
    trainer = Trainer(model, args, callbacks=[callback], eval_dataset=Sentences(rows, seed=1))
    return {name: value for name, value in trainer.evaluate().items() if "_token_" in name}


def evaluate_on_rank(rank: int, port: int, folder: Path, sizes: tuple[int, ...]) -> None:
    ranks = {"WORLD_SIZE": "2", "RANK": str(rank), "LOCAL_RANK": str(rank)}
    os.environ.update({**ranks, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)})
    found = [evaluated(folder, rows, 3) for rows in sizes]
    if rank == 0:
        (folder / "found.json").write_text(json.dumps(found))
    torch.distributed.destroy_process_group()


def test_rows_that_fill_the_last_batches_are_not_counted_twice(tmp_path: Path, run_ranks: Callable[..., None]) -> None:
    sizes = (1, 7, 9)  # with 2 × 3 rows at a time, the last batches lack 5, 5 and 3 rows
    run_ranks(evaluate_on_rank, 2, tmp_path, sizes)
    for rows, found in zip(sizes, json.loads((tmp_path / "found.json").read_text()), strict=True):
        assert found == pytest.approx(evaluated(tmp_path, rows, 6), rel=1e-6), rows
