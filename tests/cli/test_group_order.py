"""`avuc evaluate --group` lists groups in the order that people expect."""

from __future__ import annotations

import json

from .test_more import run


def test_groups_are_in_the_order_of_their_numbers(tmp_path, capsys):
    sites = ["10", "2", "1", "", "b"]
    rows = [f"0.{9 - row % 4},0.{1 + row % 4},{row % 2},{sites[row % 5]}" for row in range(30)]
    file, out, page = (tmp_path / name for name in ("a.csv", "a.json", "a.html"))
    file.write_text("\n".join(["prob_0,prob_1,label,site", *rows]) + "\n")
    assert run("evaluate", file, "--group", "site", "--replicates", 0, "--json", out, "--report", page) == 0
    assert [each["name"] for each in json.loads(out.read_text())["groups"]] == ["1", "2", "10", "b", ""]
    printed = capsys.readouterr().out.split("Calibration by site")[1].splitlines()[3:8]
    assert [line.split()[0] for line in printed] == ["1", "2", "10", "b", "(none)"]
    found = page.read_text()
    places = [found.index(f">{name}</", found.index("Calibration by site")) for name in ("1", "2", "10", "b", "(none)")]
    assert places == sorted(places)
