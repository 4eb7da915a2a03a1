"""Two processes give the weights and the threshold of one process with the whole batch."""

from __future__ import annotations

from pathlib import Path

import pytest

from .conftest import trained

RUN = """
import json, os, sys
sys.path.insert(0, sys.argv[1])
import torch
from conftest import Rows, tiny_model
from transformers import TrainingArguments
from avuc.losses import AvUCLoss
from avuc.transformers import AvUCTrainer

class InOrder(AvUCTrainer):
    def _get_train_sampler(self, *args):
        return torch.utils.data.SequentialSampler(self.train_dataset)

torch.set_num_threads(1)
args = TrainingArguments(
    sys.argv[2], report_to="none", use_cpu=True, num_train_epochs=2, save_strategy="no", disable_tqdm=True, optim="sgd",
    learning_rate=0.5, lr_scheduler_type="constant", per_device_train_batch_size=16 // int(os.environ["WORLD_SIZE"]),
    average_tokens_across_devices=sys.argv[3] == "average", max_grad_norm=0.0, dataloader_pin_memory=False,
)
avuc = AvUCLoss(beta=1.0, warmup_steps=2)
trainer = InOrder(tiny_model(tokens=True), args, avuc=avuc, train_dataset=Rows(64, tokens=True))
trainer.train()
if args.process_index == 0:
    weights = torch.cat([p.detach().flatten() for p in trainer.model.parameters()])
    print("RESULT", json.dumps([float(avuc.threshold), weights.tolist()]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("average", ["average", "local"])
def test_two_ranks_are_one_process(tmp_path: Path, average: str) -> None:
    (one, expected), (two, found) = (trained(RUN, tmp_path, ranks, average) for ranks in (1, 2))
    assert two == pytest.approx(one, rel=1e-6)
    assert found == pytest.approx(expected, rel=1e-3, abs=1e-4)
