"""Dialects of .csv, and text files that are something else."""

from __future__ import annotations

import csv
import gzip

from .table import (
    LABELS,
    LOGITS,
    NAMES,
    PROBS,
    ROWS,
    TRUTH,
    Case,
    columns,
    label,
    lines,
    names_of,
    numbered,
    text,
)

COLUMNS = [label(), *numbered(LOGITS, "logits_")]
PLAIN = lines(COLUMNS)
SMALL = [f"{name}, small" for name in NAMES]
BODY = PLAIN.split("\n", 1)[1]
HEADER = r"header"
READ = r"\.csv|UTF-8"
POINT = r"decimal|point|comma"
THOUSANDS = [label(), *((n, [f"{v * 1000:,.1f}" for v in c]) for n, c in numbered(LOGITS, "logits_"))]


def semicolons(decimal: str) -> str:
    return lines(COLUMNS, comma=";").replace(".", decimal)


PRICES = "price\n" + "1.99\n" * ROWS
CASES = [
    Case("semicolons", text(lines(COLUMNS, comma=";")), TRUTH),
    Case("tabs", text(lines(COLUMNS, comma="\t")), TRUTH),
    Case("tabs in a .tsv", text(lines(COLUMNS, comma="\t"), "scores.tsv"), TRUTH),
    Case(
        "a .tsv with a comma in a header name",
        text(lines([("image, path", ["a.png"] * ROWS), *COLUMNS], comma="\t"), "scores.tsv"),
        TRUTH,
    ),
    Case(
        "tabs, and a comma in a header name",
        text(lines([("image, path", ["a.png"] * ROWS), *COLUMNS], comma="\t")),
        TRUTH,
    ),
    Case(
        "semicolons, and commas in the class names",
        text(lines([label(), *columns(PROBS, [f"prob_{n}, small" for n in NAMES])], comma=";")),
        TRUTH,
    ),
    Case(
        "semicolons, decimal commas, and commas in the class names",
        text(
            lines(
                [
                    label([f"{name}, small" for name in names_of(LABELS)]),
                    *((n, [f"{v:.9g}".replace(".", ",") for v in c]) for n, c in columns(PROBS, SMALL)),
                ],
                comma=";",
            )
        ),
        TRUTH,
        says=r"decimal comma",
    ),
    Case(
        "semicolons, and commas in class names in quotes",
        text(lines([label(), *columns(PROBS, [f"prob_{n}, small" for n in NAMES])], comma=";", quoting=csv.QUOTE_ALL)),
        TRUTH,
    ),
    Case("semicolons and decimal commas", text(semicolons(",")), TRUTH, says=r"decimal comma"),
    Case(
        "decimal commas beside prices with decimal points",
        text("\n".join(map(";".join, zip(PRICES.split(), semicolons(",").split(), strict=True)))),
        TRUTH,
    ),
    Case(
        "decimal commas in quotes",
        text(
            lines([label(), *((n, [f"{v:.9g}".replace(".", ",") for v in c]) for n, c in numbered(LOGITS, "logits_"))])
        ),
        TRUTH,
        POINT,
    ),
    Case("bars between cells", text(lines(COLUMNS, comma="|")), TRUTH, r"comma|semicolon|\btab"),
    Case("spaces between cells", text(lines(COLUMNS, comma=" ")), TRUTH, r"comma|semicolon|\btab"),
    Case("spaces after the commas", text(PLAIN.replace(",", ", ")), TRUTH),
    Case("a byte order mark", text(b"\xef\xbb\xbf" + PLAIN.encode()), TRUTH),
    Case("Windows line ends", text(lines(COLUMNS, end="\r\n")), TRUTH),
    Case("old Mac line ends", text(lines(COLUMNS, end="\r")), TRUTH, READ),
    Case("a blank line at the end and in the middle", text(PLAIN.replace("\n", "\n\n", 30) + "\n\n"), TRUTH),
    Case("no line end at the end", text(PLAIN.rstrip("\n")), TRUTH),
    Case("every cell in quotes", text(lines(COLUMNS, quoting=1)), TRUTH),
    Case(
        "names in quotes with commas",
        text(lines([label(f"{n}, the" for n in names_of(LABELS)), *columns(PROBS, [f"prob_{n}, the" for n in NAMES])])),
        TRUTH,
    ),
    Case("thousands separators in quotes", text(lines(THOUSANDS)), None, r"separator|could not|number"),
    Case(
        "a comment above the header", text("# run 17, epoch 90\n" + PLAIN), TRUTH, r"header|column|comment|first line"
    ),
    Case("a comment of one word above the header", text("#run17\n" + PLAIN), TRUTH, r"header|column|comment|cells"),
    Case("a comment in the middle", text(PLAIN.replace("\n", "\n# second part\n", 1)), TRUTH, r"line 2"),
    Case(
        "Excel's sep=; above the header",
        text("sep=;\n" + lines(COLUMNS, comma=";")),
        TRUTH,
        r"header|column|cells|sep=",
    ),
    Case("a trailing comma in every line", text(PLAIN.replace("\n", ",\n")), TRUTH, r"column|cells"),
    Case(
        "a trailing comma in every line but the header",
        text(PLAIN.replace("\n", ",\n").replace(",\n", "\n", 1)),
        TRUTH,
        r"cells",
    ),
    Case("a line that is cut short", text(PLAIN[: PLAIN.rindex(",")] + "\n"), None, r"cells"),
    Case("the header again in the middle", text(PLAIN + PLAIN), None, r"line|row|header"),
    Case("no header", text(BODY), TRUTH, HEADER),
    Case(
        "no header, labels from another file",
        text(lines(numbered(LOGITS, "x")).split("\n", 1)[1]),
        None,
        HEADER,
        words=("--labels", "{folder}/scores.csv", "--labels-key", "label"),
    ),
    Case(
        "a header in another script",
        text(lines([("метка", list(LABELS)), *numbered(LOGITS, "логит_")])),
        TRUTH,
        r"--label",
        (("--label", "метка", "--scores-key", "логит_"), ("--labels-key", "метка", "--scores-key", "логит_")),
    ),
    Case(
        "class names in other scripts",
        text(lines([label("猫犬鳥魚馬"[k] for k in LABELS), *columns(PROBS, [f"prob_{c}" for c in "猫犬鳥魚馬"])])),
        TRUTH,
    ),
    Case("a header name twice", text(PLAIN.replace("logits_3", "logits_2", 1)), TRUTH, r"same name"),
    Case(
        "the same header name for every class",
        text(lines([label(), *columns(PROBS, ["prob"] * 5)])),
        TRUTH,
        r"same name",
    ),
    Case(
        "pandas' prob, prob.1, prob.2, …",
        text(lines([label(), *columns(PROBS, ["prob", *(f"prob.{k}" for k in range(1, 5))])])),
        TRUTH,
        r"--columns",
        (("--columns", "prob,prob.1,prob.2,prob.3,prob.4"),),
    ),
    Case("UTF-16, as Excel saves Unicode text", text(PLAIN.encode("utf-16")), TRUTH, r"UTF-8"),
    Case(
        "Latin-1 names",
        text(
            lines(
                [
                    label("café" if k == 0 else NAMES[k] for k in LABELS),
                    *columns(PROBS, ["prob_café", *(f"prob_{n}" for n in NAMES[1:])]),
                ]
            ).encode("latin-1")
        ),
        TRUTH,
        r"UTF-8",
    ),
    Case("a packed .csv.gz", text(gzip.compress(PLAIN.encode()), "scores.csv.gz"), TRUTH, r"\.csv"),
    Case("a packed file named .csv", text(gzip.compress(PLAIN.encode())), TRUTH, READ),
    Case("a .csv named .npz", text(PLAIN, "scores.npz"), TRUTH, r"numpy\.savez|\.csv"),
    Case("a .csv named .parquet", text(PLAIN, "scores.parquet"), TRUTH, r"\.parquet"),
    Case("a .csv named .txt", text(PLAIN, "scores.txt"), TRUTH, r"\.csv"),
    Case("a name in capitals, .CSV", text(PLAIN, "SCORES.CSV"), TRUTH),
    Case("a JSON list", text(str(PROBS.tolist()), "scores.json"), None, r"save it as"),
    Case("a JSON list named .csv", text(str(PROBS[:3].tolist())), None, r"column|header"),
    Case(
        "an HTML page named .csv",
        text("<!DOCTYPE html>\n<html><body>404, not found</body></html>\n"),
        None,
        r"column|header|cells",
    ),
    Case("an empty file", text(""), None, r"again"),
    Case("a header alone", text("label,logits_0,logits_1"), None, r"at least one row"),
    Case("a name with spaces and accents", text(PLAIN, "Modèle final (2).csv"), TRUTH),
    Case("numbers as 1.5E+00", text(lines(COLUMNS, digits=".9E")), TRUTH),
    Case("numbers with a plus sign", text(lines(COLUMNS, digits="+.9g")), TRUTH),
    Case(
        "numbers of the Fortran kind, 1.5D+00",
        text(lines(COLUMNS, digits=".9E").replace("E+", "D+").replace("E-", "D-")),
        TRUTH,
        r"could not|number",
    ),
    Case(
        "lists in one cell, [0.1 0.9]",
        text(lines([label(), ("probs", [" ".join(f"{p:.6f}" for p in row).join("[]") for row in PROBS])])),
        TRUTH,
        r"number|column per class|logits_0",
    ),
    Case(
        "a matrix printed in lists, [0.1, 0.9]",
        text(lines([label(), ("probs", [str([float(p) for p in row]) for row in PROBS])])),
        TRUTH,
        r"number|column per class|logits_0",
    ),
]
assert len(LABELS) == ROWS
