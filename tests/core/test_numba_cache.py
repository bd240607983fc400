"""Compiled code that is kept on disk is of today's sources, or is not used."""

import importlib.util
from pathlib import Path

import pytest

from calibseg.core.numba_cache import keeps_code

numba = pytest.importorskip("numba")


def probe_in(folder: Path):
    """A function of a file in this folder."""
    (folder / "fast.py").write_text("def probe():\n    pass\n")
    spec = importlib.util.spec_from_file_location("fast", folder / "fast.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.probe


def test_code_of_other_sources_is_removed_and_that_of_the_same_stays(tmp_path, monkeypatch):
    monkeypatch.setattr(numba.config, "CACHE_DIR", "")
    probe, sources = probe_in(tmp_path), [tmp_path / "fast.py", tmp_path / "layout.py"]
    sources[1].write_text("HEAD = 8")
    assert keeps_code(probe, sources)
    kept = tmp_path / "__pycache__" / "fast.loop-1.py311.nbi"
    kept.write_bytes(b"machine code")
    assert keeps_code(probe, reversed(sources))
    assert kept.exists()
    sources[1].write_text("HEAD = 9")
    assert keeps_code(probe, sources)
    assert not kept.exists()


def test_without_a_folder_nothing_is_kept(tmp_path, monkeypatch):
    def refused(**_):
        raise RuntimeError("cannot cache function 'probe': no locator available")

    monkeypatch.setattr(numba, "njit", refused)
    assert not keeps_code(lambda: None, [Path(__file__)])
