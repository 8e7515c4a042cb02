"""What the init container does with the node's folders."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from typer.testing import CliRunner

from kvoffload_agent.cli import app
from kvoffload_agent.folders import PRIVATE, PUBLIC, FolderError, give

ME = os.geteuid()


@pytest.mark.parametrize("mode", [PUBLIC, PRIVATE])
def test_a_missing_folder_is_made_and_an_existing_one_gets_owner_and_mode(
    tmp_path: Path, mode: int
) -> None:
    folder = tmp_path / "a" / "b"
    give(folder, owner=ME, mode=mode)
    folder.chmod(0o711)
    give(folder, owner=ME, mode=mode)

    found = folder.stat()
    assert found.st_mode & 0o777 == mode
    assert found.st_uid == ME


def test_a_link_is_refused_and_its_target_left_alone(tmp_path: Path) -> None:
    target = tmp_path / "target"
    target.mkdir(mode=0o711)
    link = tmp_path / "link"
    link.symlink_to(target)

    with pytest.raises(FolderError, match="cannot be given"):
        give(link, owner=ME, mode=PRIVATE)
    assert target.stat().st_mode & 0o777 == 0o711


def test_the_command_says_in_one_line_what_cannot_be(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_text("")
    result = CliRunner().invoke(app, ["prepare", f"--owner={ME}", f"--public={file}"])

    assert result.exit_code == 69
    assert result.stderr.count("\n") == 1
    assert str(file) in result.stderr
    good = CliRunner().invoke(app, ["prepare", f"--owner={ME}", f"--private={tmp_path / 'ok'}"])
    assert good.exit_code == 0
