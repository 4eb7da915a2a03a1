"""Instead of one guess, answer with a set that contains the truth 95 times out of 100.

A conformal classifier works for any model and needs only held-out rows. Where the model is sure, the set has one digit;
where it is not, the set has several, and you see which ones. Some of the surest digits get an empty set by chance, so
that the coverage is 95 % and not more; `allow_empty=False` prevents that. The promise is for the average over all new
digits, not for every single one. The picture shows the least certain ones.

Topic: Select and guarantee
Picture: Ten handwritten digits with the set of possible digits above each, and a histogram of the sizes of all sets.
"""

import matplotlib.pyplot as plt
from sklearn.datasets import load_digits
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import train_test_split

from avuc import Predictions
from avuc.conformal import ConformalClassifier

x, y = load_digits(return_X_y=True)
train_x, rest_x, train_y, rest_y = train_test_split(x / 16, y, train_size=200, random_state=0)
held_x, new_x, held_y, new_y = train_test_split(rest_x, rest_y, test_size=0.5, random_state=0)
model = LogisticRegression(max_iter=1000).fit(train_x, train_y)
new = Predictions(model.predict_proba(new_x), new_y)

conformal = ConformalClassifier("aps", coverage=0.95).fit(model.predict_proba(held_x), held_y)
sets = conformal.predict_sets(new)
check = conformal.check(new)
print(check.sentence)
print("number of digits by the size of their set:", dict(enumerate(check.sizes)))

figure = plt.figure(figsize=(8.5, 3.6), layout="constrained")
grid = figure.add_gridspec(2, 8)
for place, row in enumerate(new.entropy.argsort(descending=True)[:10].tolist()):
    ax = figure.add_subplot(grid[place // 5, place % 5])
    ax.imshow(new_x[row].reshape(8, 8), cmap="gray_r")
    ax.set_title("{" + " ".join(map(str, sets[row].nonzero()[:, 0].tolist())) + "}", fontsize=8)
    ax.set_axis_off()
ax = figure.add_subplot(grid[:, 5:])
ax.bar(range(len(check.sizes)), check.sizes)
ax.set(xlabel="size of the set", ylabel="digits")
figure.savefig("conformal_sets.svg")
