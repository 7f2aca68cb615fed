"""Model files that run code when read: the code runs confined, and the user gets the reason of the failure."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from fleet.confinement.process import missing_features
from tests.needs import needs

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(bool(missing_features()), reason=f"this machine has no {missing_features()}"),
]


class Planted:
    """A pickle that copies a file of the reading user."""

    def __init__(self, secret: Path, stolen: Path) -> None:
        self.command = f"cp {secret} {stolen}"

    def __reduce__(self) -> tuple[object, tuple[str]]:
        return os.system, (self.command,)


def fleet(*words: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-m", "fleet", *words], capture_output=True, text=True, check=False)


def test_a_pickle_in_a_pt2_file_is_not_executed(tmp_path: Path) -> None:
    """As a control, `torch.export.load` itself runs the pickle."""
    torch: Any = needs("torch")
    good, evil, secret, stolen = (tmp_path / name for name in ("good.pt2", "evil.pt2", "secret", "stolen"))
    secret.write_text("key")
    program = torch.export.export(torch.nn.Linear(8, 4).eval(), (torch.ones(2, 8),))
    torch.export.save(program, good)
    with zipfile.ZipFile(good) as source, zipfile.ZipFile(evil, "w") as goal:
        for entry in source.infolist():
            content = source.read(entry)
            if "sample_inputs" in entry.filename and content:
                buffer = io.BytesIO()
                torch.save(Planted(secret, stolen), buffer)
                content = buffer.getvalue()
            goal.writestr(entry.filename, content)
    load = f"import torch; torch.export.load({str(evil)!r})"
    subprocess.run([sys.executable, "-c", load], capture_output=True, check=False)
    assert stolen.exists()
    stolen.unlink()

    refused = fleet("build", evil, "-o", tmp_path / "evil.so")
    built = fleet("build", good, "-o", tmp_path / "good.so")

    assert refused.returncode != 0
    assert "evil.pt2 is no program as torch.export.save writes it" in refused.stderr
    assert not stolen.exists()
    assert built.returncode == 0, built.stderr


def test_a_program_that_crashes_its_reader_costs_one_line(tmp_path: Path) -> None:
    """TVM follows indices of a mutated TIR JSON without checks; 4 of 12 series of 250 ended with SIGSEGV."""
    from fleet.workloads.programs import matmul

    path = tmp_path / "mutated.json"
    text = matmul(16).mod_json
    path.write_text(text.replace('"root_index":', '"root_index":-', 1))

    done = fleet("build", path, "-o", tmp_path / "out.so")

    assert done.returncode in (1, 2), done.stderr
    assert [line for line in done.stderr.splitlines() if line.startswith("error:")]
    assert "Traceback" not in done.stderr


def test_a_keras_file_with_a_lambda_layer_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keras refuses functions in a file unless the caller declares the file trusted, which we never do."""
    monkeypatch.setenv("KERAS_BACKEND", "torch")
    needs("torch")
    keras: Any = needs("keras")
    marker = tmp_path / "ran"
    given = keras.Input((8,))
    planted = keras.layers.Lambda(lambda x, marker=str(marker): (os.system(f"touch {marker}"), x)[1], output_shape=(8,))  # noqa: S605
    keras.Model(given, planted(given)).save(tmp_path / "lambda.keras")
    marker.unlink(missing_ok=True)

    refused = fleet("build", tmp_path / "lambda.keras", "-o", tmp_path / "out.so", "--batch-size", "1")

    assert refused.returncode != 0
    assert "Lambda" in refused.stderr
    assert not marker.exists()
