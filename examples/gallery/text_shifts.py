"""A text classifier can notice typing errors: it becomes less sure as it becomes wrong.

Which package does a sentence of Python's own documentation come from? A linear model on word counts learns it from
1,500 sentences. `typos` then replaces letters by their neighbours on the keyboard, and `word_dropout` leaves words
out. Compare accuracy with mean confidence: here they fall together, because an unknown word is no evidence for any
class. Models that cut words into pieces read a misspelled word as other pieces, so measure before you trust this.

Topic: Shifts
Picture: Accuracy and mean confidence by severity, for typing errors and for missing words; both fall together.
"""

import ast
import re
from pathlib import Path

import matplotlib.pyplot as plt
import torch
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from avuc import Predictions, metrics
from avuc.shifts.text import TEXT_SHIFTS

sentences: dict[str, int] = {}
for label, package in enumerate(("asyncio", "email", "unittest", "logging")):
    for path in sorted((Path(ast.__file__).parent / package).glob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                for sentence in re.split(r"(?<=\.)\s", ast.get_docstring(node) or ""):
                    if len(sentence.split()) >= 5:
                        sentences[" ".join(sentence.split())] = label
texts, labels = list(sentences), torch.tensor(list(sentences.values()))
order = torch.randperm(len(texts), generator=torch.Generator().manual_seed(0)).tolist()
texts, labels = [texts[row] for row in order], labels[order]
model = make_pipeline(CountVectorizer(), LogisticRegression(C=3, max_iter=500)).fit(texts[:1500], labels[:1500])

figure, axes = plt.subplots(1, 2, figsize=(8.5, 3.6), layout="constrained", sharey=True)
for ax, (name, shift) in zip(axes, TEXT_SHIFTS.items(), strict=True):
    results = []
    for severity in range(6):
        new = shift(texts[1500:], severity, torch.Generator().manual_seed(0)) if severity else texts[1500:]
        results.append(Predictions(model.predict_proba(new), labels[1500:]))
        accuracy = metrics.accuracy(results[-1].probs, results[-1].labels)
        confidence = float(results[-1].confidence.mean())
        print(f"{name:12} {severity}: accuracy {accuracy:.3f}, confidence {confidence:.3f} {new[0][:40]!r}")
    ax.plot([float(p.confidence.mean()) for p in results], "o-", label="mean confidence")
    ax.plot([metrics.accuracy(p.probs, p.labels) for p in results], "s-", label="accuracy")
    ax.set(xlabel=f"severity of {name}", ylim=(0, 1))
axes[0].legend()
figure.savefig("text_shifts.svg")
