"""The program of a job file: another click log, with its own schema, trains by a job file alone (here without a bus)."""

import json

import msgspec
import numpy as np
import train

from rover_bus.client.job_file import read_job

JOB = """
program = "dlrm"
predictions = "scores.csv"

[data]
train = "visits.tsv"
evaluate = "visits_eval.tsv"
batch_size = 64
epochs = 2

[data.schema]
format = "tsv"
label = "stars"
label_threshold = 4
dense = ["age"]
categorical = ["user"]
multi = { tags = ";" }

[model]
width = 4
top = [8]
"""


def write_visits(path, rows, seed):
    """Who is fond of a tag gives four stars or five; one row a hundred is broken."""
    rng = np.random.default_rng(seed)
    lines = ["user\tage\ttags\tstars"]
    for number in range(rows):
        user, tags = (
            rng.integers(0, 20),
            rng.choice(["red", "blue", "green"], rng.integers(0, 3), replace=False),
        )
        fond = ("red" in tags) == (user % 2 == 0)
        lines.append(
            f"u{user}\t{rng.integers(9, 90) if number % 7 else ''}\t{';'.join(tags)}\t{5 if fond else 2}"
        )
        if number % 100 == 50:
            lines[-1] = f"u{user}\tonly two"
    path.write_text("\n".join(lines) + "\n")


def test_another_click_log_trains_by_a_job_file_alone(tmp_path, monkeypatch):
    (tmp_path / "job.toml").write_text(JOB)
    write_visits(tmp_path / "visits.tsv", 6000, seed=1)
    write_visits(tmp_path / "visits_eval.tsv", 1000, seed=2)
    (tmp_path / "spec.json").write_bytes(msgspec.json.encode(read_job(tmp_path / "job.toml")))
    monkeypatch.delenv("ROVER_JOB", raising=False)
    monkeypatch.setenv("ROVER_SPEC_FILE", str(tmp_path / "spec.json"))
    monkeypatch.setenv("ROVER_SUMMARY_FILE", str(tmp_path / "summary.json"))

    train.main()

    summary = json.loads((tmp_path / "summary.json").read_text())
    assert summary["samples_total"] == 12_000
    assert summary["samples_dead_lettered"] == 120
    assert summary["samples_committed"] == 11_880
    assert summary["values_missing"] > 1000
    assert summary["result"]["auc"] > 0.9
    scores = (tmp_path / "scores.csv").read_text().splitlines()
    assert (scores[0], len(scores)) == ("row,score", 1001)
    assert scores[51] == "50,"  # the broken row has no score
    assert all(0 < float(line.split(",")[1]) < 1 for line in scores[1:] if not line.endswith(","))
