"""Storage of a model's content in files, so that tasks of the build pool get paths."""

from __future__ import annotations

import pickle
from dataclasses import replace
from pathlib import Path

import pytest

from cross.pool.build_pool import BuildPool
from cross.pool.confined import Confined
from fleet.errors import BuildError, InvalidRequest
from fleet.models.confined import having
from fleet.models.importing.value import Model, ModelFormat
from fleet.models.model import bundled_model, load_model


@pytest.fixture(scope="module")
def model() -> Model:
    """SqueezeNet, with the content of another shape."""
    model = load_model(bundled_model())
    return replace(model, others=(replace(model, stored=b"for another shape"),))


def count_bytes(model: Model) -> list[int]:
    return [len(variant.content) for variant in model.variants]


def test_a_pickle_of_a_stored_model_has_no_weights(model: Model, tmp_path: Path) -> None:
    stored = model.stored_in(tmp_path)

    assert len(pickle.dumps(stored)) < 4096 < len(model.content)
    assert [one.content for one in stored.variants] == [one.content for one in model.variants]
    assert (stored.digest, stored.inputs, len(stored.others)) == (model.digest, model.inputs, 1)


def test_a_confined_task_reads_the_files_of_its_model_only(model: Model, tmp_path: Path) -> None:
    """Formats with code confine their tasks. This one claims such a format."""
    other = replace(model, stored=b"of another job", others=()).stored_in(tmp_path)
    with BuildPool(1) as pool:
        stored = replace(model, format=ModelFormat.TORCH).stored_in(tmp_path)

        assert pool.submit(having(count_bytes, stored), stored).result() == count_bytes(model)
        with pytest.raises(Exception, match="Permission denied"):
            pool.submit(having(count_bytes, stored), other).result()


def test_a_reader_chooses_neither_the_file_nor_its_name(model: Model, tmp_path: Path) -> None:
    """Else a hostile model would have other tasks, or this process, read or overwrite a file of the user."""
    (tmp_path / "secret").write_text("secret")
    folder = tmp_path / "models"
    folder.mkdir()

    elsewhere = replace(model, stored=tmp_path / "secret", others=())
    for hostile in (elsewhere, replace(model, others=(elsewhere,))):
        with pytest.raises(InvalidRequest, match="in a file"):
            hostile.stored_in(folder)
    stored = replace(model, digest="../secret", others=()).stored_in(folder)

    assert isinstance(stored.stored, Path)
    assert stored.stored.parent == folder
    assert (tmp_path / "secret").read_text() == "secret"


def test_a_folder_without_room_is_named_with_the_remedy(model: Model, tmp_path: Path) -> None:
    with pytest.raises(BuildError, match=rf"cannot write the model to {tmp_path}/gone: .*; .* set \$TMPDIR"):
        model.stored_in(tmp_path / "gone")


def test_a_confined_task_reads_the_configured_linkers(
    model: Model, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before, cross.yaml was out of reach in the folder of XDG_CONFIG_HOME."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("FLEET_CROSS_CONFIG", raising=False)

    task = having(count_bytes, replace(model, format=ModelFormat.TORCH).stored_in(tmp_path))

    assert isinstance(task, Confined)
    assert str(tmp_path / "config/tvm-fleet/cross.yaml") in task.files.readable
