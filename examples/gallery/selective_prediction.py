"""If the model may decline, fewer of its answers are wrong.

Answer the digits with the highest confidence first, and pass the others on to a person. The curve shows the error rate
of the answers by the share of digits that is answered. A flat curve would mean that the confidence says nothing about
mistakes. With noisy digits the curve is higher, and more has to be passed on for the same error rate.

Topic: Select and guarantee
Picture: Error rate by coverage for clean and for noisy digits; both fall as fewer digits are answered.
"""

import matplotlib.pyplot as plt
import numpy as np
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

import avuc
from avuc import Predictions, metrics

x, y = load_digits(return_X_y=True)
train_x, test_x, train_y, test_y = train_test_split(x / 16, y, train_size=300, random_state=0)
model = LogisticRegression(max_iter=1000).fit(train_x, train_y)
noise = np.random.default_rng(0).normal(size=test_x.shape)

figure, ax = plt.subplots()
for name, level in {"clean": 0.0, "noisy": 0.3}.items():
    predictions = Predictions(model.predict_proba(test_x + level * noise), test_y)
    avuc.plot.risk_coverage(predictions, label=name, ax=ax)
    curve = metrics.risk_coverage_curve(predictions.probs, predictions.labels)
    for share in (1.0, 0.8, 0.5):
        place = int(np.searchsorted(curve.coverage, share - 1e-9))
        print(f"{name}: {share:4.0%} answered, error rate {curve.risk[place]:.3f}")
figure.savefig("selective_prediction.svg")
