"""The texts of the language-model study: `collect` copies them from clones, `tokenise` turns them into tokens.

    python reproduction/language_models.py texts CLONES TEXTS
    python reproduction/language_models.py tokens TEXTS TOKENS

The folder of texts holds

    pretrain/*.txt    text for pretraining
    tune.txt          text for fine-tuning: the first 80 % for training, 10 % for validation, the last 10 % for tests
    other/*.txt       other texts, for tests only

The folder of tokens holds one file `NAME.npy` for each part, and the tokenizer. Neither folder is ever committed.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np

from avuc.core.errors import InputError, require

END = "<|end|>"
IN_DOMAIN = "test"
# repository → the commit that was read; a clone is a folder with this name without the owner
SOURCES = {
    "karpathy/char-rnn": "6f9487a6fe5b420b7ca9afb0d7c078e37c1d1b4e",
    "computationalstylistics/100_english_novels": "143e601875d70e195f2cc5ebd8b034609271194d",
    "HenryPengZou/JointMatch": "e976613f55776ce597a2fa06c30ef02512bef82d",
    "AcademiaSinicaNLPLab/sentiment_dataset": "23c72429de5fb3d2f3da87bf2efb5559c15b78f7",
}
OTHER_CHARACTERS = 150_000  # length of each other text


def collect(clones: Path, out: Path) -> None:
    """Write the folder of texts from clones of `SOURCES`.

    The novels are sorted by name: the first, third, fifth … are for pretraining. The other text "novels" has a part of
    every tenth novel, none of which is used for pretraining.
    """
    novels = sorted((clones / "100_english_novels" / "corpus").glob("*.txt"))
    held_out = novels[1::10]
    texts = {f"pretrain/{path.name}": _read(path) for path in novels[::2]}
    texts["tune.txt"] = _read(clones / "char-rnn" / "data" / "tinyshakespeare" / "input.txt")
    length = OTHER_CHARACTERS // max(1, len(held_out))
    # a novel's first pages may be a preface or a table of contents
    texts["other/novels.txt"] = "\n\n".join(_read(path)[50_000:][:length] for path in held_out)
    news = csv.DictReader(io.StringIO(_read(clones / "JointMatch" / "data" / "ag_news" / "test.csv")))
    texts["other/news.txt"] = "\n".join(row["content"].replace("\\", " ") for row in news)
    reviews = _read(clones / "sentiment_dataset" / "data" / "stsa.binary.test").splitlines()
    texts["other/reviews.txt"] = "\n".join(line.split(" ", 1)[1] for line in reviews)  # without the label
    for name, text in texts.items():
        path = out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text if name[0] != "o" else text[:OTHER_CHARACTERS], encoding="utf-8")


def tokenise(texts: Path, out: Path, *, vocabulary: int) -> dict[str, int]:
    """Train a byte-level BPE tokenizer on the training text alone, write all parts as tokens, and return their lengths.

    Args:
        texts: the folder of texts.
        out: folder for `NAME.npy` (uint16) and `tokenizer.json`.
        vocabulary: number of tokens, at most 65,536.
    """
    require("tokenizers", "transformers", "the tokenizer of the language-model study")
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

    if not 257 <= vocabulary <= 65_536:
        raise InputError(f"vocabulary: between 257 and 65536 tokens, as bytes and uint16 need; found {vocabulary}")
    parts = read_parts(texts)
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocabulary, special_tokens=[END], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.train_from_iterator(_lines(parts["pretrain"] + parts["train"]), trainer)
    out.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(out / "tokenizer.json"))
    lengths = {}
    for name, documents in parts.items():
        tokens: list[int] = []
        for document in documents:
            tokens += [tokenizer.token_to_id(END)]
            for encoded in tokenizer.encode_batch(list(_lines([document]))):
                tokens += encoded.ids
        np.save(out / f"{name}.npy", np.asarray(tokens, np.uint16))
        lengths[name] = len(tokens)
    return lengths


def read_parts(texts: Path) -> dict[str, list[str]]:
    """Return the documents of every part: pretrain, train, validation, test, and one for each other text."""
    tune = _read(texts / "tune.txt")
    first, second = _line_end(tune, 0.8), _line_end(tune, 0.9)
    parts = {"pretrain": [_read(path) for path in sorted((texts / "pretrain").glob("*.txt"))]}
    if not parts["pretrain"]:
        raise InputError(f"{texts / 'pretrain'}: no .txt files to train on; see reproduction/README.md")
    parts |= {"train": [tune[:first]], "validation": [tune[first:second]], IN_DOMAIN: [tune[second:]]}
    for path in sorted((texts / "other").glob("*.txt")):
        if path.stem in parts:
            raise InputError(f"{path}: {path.stem} is the name of a part of tune.txt; rename the file")
        parts[path.stem] = [_read(path)]
    return parts


def load_tokens(folder: Path) -> Mapping[str, np.ndarray]:
    """Return the tokens of each part by name, as int64 arrays."""
    parts = {path.stem: np.load(path, allow_pickle=False).astype(np.int64) for path in sorted(folder.glob("*.npy"))}
    missing = {"pretrain", "train", "validation", IN_DOMAIN} - parts.keys()
    if missing:
        raise InputError(f"{folder}: no {sorted(missing)[0]}.npy; make the tokens with the command 'tokens'")
    return parts


def _line_end(text: str, share: float) -> int:
    """Return the index after the line at this share of the text."""
    return text.find("\n", int(share * len(text))) + 1 or len(text)


def _lines(documents: list[str]) -> Iterator[str]:
    """Yield the lines of all documents."""
    for document in documents:
        yield from document.splitlines(keepends=True)


def _read(path: Path) -> str:
    """Return the text of a file; `InputError` if it cannot be read."""
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); see reproduction/README.md") from None
