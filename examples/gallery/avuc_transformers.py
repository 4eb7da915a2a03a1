"""In Transformers, `AvUCTrainer` replaces `Trainer`, and the metrics come with it.

A small BERT learns from scratch which package of Python's standard library a sentence of the documentation describes.
`AvUCTrainer` adds AvUC to the cross-entropy; `compute_metrics` reports calibration with every evaluation. The model
has seen only 1,200 sentences, and the diagram shows how far its confidence can be trusted. One run, one seed.

Topic: Train
Picture: Reliability diagram of a small BERT on held-out sentences of Python's documentation.
"""

import ast
import re
import tempfile
from collections import Counter
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments, set_seed
from transformers.trainer_callback import PrinterCallback

import avuc
from avuc.transformers import AvUCTrainer, compute_metrics

PACKAGES, LENGTH, WORDS = ("asyncio", "email", "unittest", "logging"), 16, 1000
set_seed(0)
sentences: dict[str, int] = {}
for label, package in enumerate(PACKAGES):
    for path in sorted((Path(ast.__file__).parent / package).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                for sentence in re.split(r"(?<=\.)\s", ast.get_docstring(node) or ""):
                    sentences[" ".join(re.findall(r"[a-z]+", sentence.lower())[:LENGTH])] = label
texts = [text.split() for text in sentences]
common = Counter(word for text in texts for word in text).most_common(WORDS - 2)
numbers = {word: number for number, (word, _) in enumerate(common, start=2)}  # 0 is padding, 1 an unknown word
ids = [[numbers.get(word, 1) for word in text] + [0] * (LENGTH - len(text)) for text in texts]
pairs = [(torch.tensor(i), label) for i, label in zip(ids, sentences.values(), strict=True) if i[4]]
rows = [{"input_ids": i, "attention_mask": (i > 0).long(), "labels": label} for i, label in pairs]
rows = [rows[i] for i in torch.randperm(len(rows))]

size = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
model = BertForSequenceClassification(BertConfig(vocab_size=WORDS, num_labels=len(PACKAGES), **size))
with tempfile.TemporaryDirectory() as folder:
    options = {"num_train_epochs": 4, "learning_rate": 5e-3, "per_device_train_batch_size": 64, "report_to": "none"}
    quiet = {"save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True, "use_cpu": True}
    loss = avuc.AvUCLoss(beta=1.0, variant="monotone", warmup_epochs=2)
    data = {"train_dataset": rows[:1200], "compute_metrics": compute_metrics}
    trainer = AvUCTrainer(model, TrainingArguments(folder, **options, **quiet), avuc=loss, **data)
    trainer.remove_callback(PrinterCallback)  # it prints run times
    trainer.train()
    output = trainer.predict(rows[1200:])
print(", ".join(f"{name} {output.metrics[f'test_{name}']:.3f}" for name in ("accuracy", "nll", "ece", "uce", "avu")))
avuc.plot.reliability(avuc.Predictions.from_logits(output.predictions, output.label_ids), ax=plt.subplots()[1])
plt.savefig("avuc_transformers.svg")
