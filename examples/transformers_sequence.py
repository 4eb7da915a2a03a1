"""Which package does a sentence of Python's documentation come from? BERT with AvUC in Hugging Face's Trainer.

The text is real and needs no download: the docstrings of the standard library. The model is small and untrained.
"""

import ast
import re
import tempfile
from collections import Counter
from pathlib import Path

import torch
from transformers import BertConfig, BertForSequenceClassification, TrainingArguments, set_seed

from avuc import AvUCLoss
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
vocabulary = {word: number for number, (word, _) in enumerate(common, start=2)}  # 0 is padding, 1 an unknown word
ids = torch.zeros(len(texts), LENGTH, dtype=torch.long)
for row, text in enumerate(texts):
    ids[row, : len(text)] = torch.tensor([vocabulary.get(word, 1) for word in text])
rows = [
    {"input_ids": words, "attention_mask": (words > 0).long(), "labels": label}
    for words, label in zip(ids, sentences.values(), strict=True)
    if words.count_nonzero() >= 5
]
rows = [rows[i] for i in torch.randperm(len(rows))]
train, test = rows[:1200], rows[1200:]

size = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
model = BertForSequenceClassification(BertConfig(vocab_size=WORDS, num_labels=len(PACKAGES), **size))
with tempfile.TemporaryDirectory() as folder:
    trainer = AvUCTrainer(
        model,
        TrainingArguments(folder, num_train_epochs=4, learning_rate=5e-3, per_device_train_batch_size=64),
        avuc=AvUCLoss(beta=1.0, warmup_epochs=2),
        train_dataset=train,
        eval_dataset=test,
        compute_metrics=compute_metrics,
    )
    trainer.train()
    figures = trainer.evaluate()
threshold = float(trainer.objective.avuc.threshold)
print(f"{len(train)} sentences to train, {len(test)} to test; certain: entropy up to {threshold:.2f} nats")
print({name: round(figures[f"eval_{name}"], 3) for name in ("accuracy", "nll", "ece", "uce", "avu_auc", "aurc")})
