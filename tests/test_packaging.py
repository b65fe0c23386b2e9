"""What is published: one version everywhere, notices, workflows, the wheel and the sdist."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email import message_from_bytes
from pathlib import Path
from typing import Any

import pytest
import yaml

import longtail
from longtail.names import __version__

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
REPOSITORY = "https://github.com/longtail-cl/longtail"


def test_the_version_is_one_everywhere() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.search(r"^## (\d+\.\d+\.\d+) - (\d{4}-\d\d-\d\d)$", changelog, re.MULTILINE)
    assert newest
    assert longtail.__version__ == __version__ == newest[1]
    assert (citation["version"], str(citation["date-released"])) == newest.groups()
    assert "version" in PROJECT["dynamic"]
    assert f"git tag --annotate v{__version__} " in read("docs/releasing.md")


def test_the_notices_of_shipped_sentences_are_in_notice() -> None:
    shipped = json.loads(read("bench/src/longtail_bench/wsd/miniature.json"))
    notice = read("bench/NOTICE")
    for key in ("notice of SemCor", "notice of WordNet 3.0"):
        assert "\n".join(shipped[key]) in notice
    assert tomllib.loads(read("bench/pyproject.toml"))["project"]["license-files"] == [
        "LICENSE",
        "NOTICE",
    ]


@pytest.mark.parametrize(
    ("schema", "path"),
    [
        *(("github-workflows", path) for path in WORKFLOWS),
        ("citation-file-format", ROOT / "CITATION.cff"),
    ],
    ids=lambda value: getattr(value, "name", value),
)
def test_files_follow_their_schema(schema: str, path: Path) -> None:
    check_jsonschema = pytest.importorskip("check_jsonschema")
    with pytest.raises(SystemExit) as done:
        check_jsonschema.main(["--builtin-schema", f"vendor.{schema}", str(path)])
    assert done.value.code == 0


def test_workflows_test_what_the_metadata_promises() -> None:
    matrix = workflow("tests")["jobs"]["tests"]["strategy"]["matrix"]
    versions = [c.rpartition(" ")[2] for c in PROJECT["classifiers"] if ":: 3." in c]
    assert matrix["python"] == versions == ["3.11", "3.12", "3.13", "3.14"]
    assert matrix["os"] == ["ubuntu-latest", "macos-latest", "windows-latest"]


def test_workflows_call_what_is_there() -> None:
    targets = set(re.findall(r"^([\w-]+):", read("Makefile"), re.MULTILINE))
    for path in WORKFLOWS:
        for job in workflow(path.stem)["jobs"].values():
            for step in job["steps"]:
                for target in re.findall(r"\bmake ([\w-]+)", step.get("run", "")):
                    assert target in targets, f"{path.name}: make {target}"
                for name in re.findall(r"\btests/[\w/.]+", step.get("run", "")):
                    assert (ROOT / name).exists(), f"{path.name}: {name}"


def test_workflows_have_no_more_rights_than_they_need() -> None:
    for path in WORKFLOWS:
        assert workflow(path.stem)["permissions"] == {"contents": "read"}, path.name
        assert "secrets." not in path.read_text(encoding="utf-8"), path.name
    publish = workflow("release")["jobs"]["publish"]
    assert publish["permissions"] == {"id-token": "write"}  # trusted publishing, no password
    assert publish["environment"] == "pypi"
    assert publish["needs"] == "build"


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sdist, and the wheel that is built from it."""
    pytest.importorskip("build")
    pytest.importorskip("hatchling")
    out = tmp_path_factory.mktemp("dist")
    check([sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(ROOT)], out)
    return out


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_the_notices_alone(packages: Path) -> None:
    with zipfile.ZipFile(next(packages.glob("*.whl"))) as wheel:
        names = wheel.namelist()
        info = f"longtail-{__version__}.dist-info"
        metadata = message_from_bytes(wheel.read(f"{info}/METADATA"))
    assert {name.split("/")[0] for name in names} == {"longtail", info}
    assert {f"{info}/licenses/LICENSE", f"{info}/licenses/NOTICE"} <= set(names)
    source = ROOT / "src"
    shipped = subprocess.run(
        ["git", "ls-files", "longtail"], cwd=source, capture_output=True, text=True
    ).stdout.split()
    if shipped:  # not so in an unpacked sdist
        own = [name for name in names if name.startswith("longtail/")]
        assert sorted(own) == sorted([*shipped, "longtail/COMMIT"])  # hatch_build.py
    assert not [name for name in names if "__pycache__" in name or "/tests/" in name]
    assert metadata["Version"] == __version__


@pytest.mark.slow
def test_the_wheel_works_in_an_empty_environment(packages: Path, tmp_path: Path) -> None:
    check([sys.executable, "-m", "venv", str(tmp_path / "venv")], tmp_path)
    scripts = tmp_path / "venv" / ("Scripts" if os.name == "nt" else "bin")
    python = str(scripts / "python")
    wheel = str(next(packages.glob("*.whl")))
    constraints = ["--constraint", str(ROOT / "constraints.txt")]
    check(
        [python, "-m", "pip", "install", "--quiet", "--no-compile", *constraints, wheel], tmp_path
    )
    check([python, "-m", "pip", "check"], tmp_path)
    check([python, "-W", "error", "-c", "import longtail; longtail.ContinualAdamW"], tmp_path)
    said = check([str(scripts / "longtail"), "--version"], tmp_path)
    assert __version__ in said
    check([str(scripts / "longtail"), "run", "toy", "--tasks", "5", "--zero-shot", "1"], tmp_path)


@pytest.mark.slow
def test_the_sdist_tests_itself(packages: Path, tmp_path: Path) -> None:
    with tarfile.open(next(packages.glob("*.tar.gz"))) as archive:
        archive.extractall(tmp_path, filter="data")
    root = tmp_path / f"longtail-{__version__}"
    for name in (
        "Makefile",
        "constraints.txt",
        "mkdocs.yml",
        "CITATION.cff",
        "NOTICE",
        "SECURITY.md",
    ):
        assert (root / name).is_file(), name
    assert not list(root.rglob("__pycache__"))
    tests = ("test_names.py", "test_metrics.py", "test_packaging.py", "test_docs.py")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider"]
    command += ["-k", "not examples"]
    check([*command, *(f"tests/{name}" for name in (*tests, "optim/test_reference.py"))], root)
    check(
        [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(tmp_path / "dist")], root
    )
    assert list((tmp_path / "dist").glob("*.whl"))


def check(command: list[str], folder: Path) -> str:
    """What the command prints; it must succeed, and sees the longtail of `folder` or none."""
    own = {"PYTHONPATH": str(folder / "src")} if (folder / "src").is_dir() else {}
    kept = {k: v for k, v in os.environ.items() if k not in ("PYTHONPATH", "PYTEST_ADDOPTS")}
    done = subprocess.run(command, cwd=folder, env=kept | own, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def workflow(name: str) -> dict[str, Any]:
    return yaml.safe_load(read(f".github/workflows/{name}.yml"))
