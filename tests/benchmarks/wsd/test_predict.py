"""A finished run ranks the senses of a word, wherever it is asked and the corpus has gone."""

import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch
from helpers import wsd_backbones
from helpers.wordnet_files import write_wordnet

from longtail.benchmarks import wsd
from longtail.benchmarks.wsd import wordnet
from longtail.benchmarks.wsd.miniature import miniature, sentences
from longtail.benchmarks.wsd.pairs import PairTable
from longtail.benchmarks.wsd.predict import rank_senses
from longtail.cli import main
from longtail.replicas import build_model

CORPUS = sentences()
TABLE = PairTable(miniature())
SMALL = ["--tasks", "2", "--cap", "1", "--test-cap", "1", "--epochs", "1", "--quiet"]


def words_of(target: int) -> tuple[list[str], int, str]:
    place = int(CORPUS.position[target])
    return CORPUS.sentences[CORPUS.sentence[target]], place, CORPUS.lemmas[CORPUS.task[target]]


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_sentence_of_the_corpus_gets_the_scores_of_its_pairs(
    dropout: float, tmp_path: Path
) -> None:
    settings = wsd.Settings(miniature=True, dropout=dropout)
    model = build_model(wsd.build(settings, 0).make_model, 5)
    safetensors.torch.save_file(model.state_dict(), tmp_path / "model.safetensors")
    target = 30
    first, last = TABLE.targets.first_pair[target : target + 2]
    words, place, lemma = words_of(target)
    ranked = rank_senses(
        replace(settings), tmp_path / "model.safetensors", " ".join(words), words[place], lemma
    )
    with torch.no_grad():
        wanted = model.eval()(TABLE[torch.arange(first, last)][0])
    assert [s.score for s in ranked] == pytest.approx(sorted(wanted.tolist(), reverse=True))
    keys = {f"{lemma}%{sense.key}" for sense in CORPUS.senses[CORPUS.task[target]]}
    assert {s.key for s in ranked} == keys


def test_which_of_several_words_is_meant_can_be_said(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run = str(tmp_path / "run")
    assert main(["run", "wsd", "--miniature", *SMALL, "--out", run]) == 0
    command = ["wsd", "predict", run, "They tell me what to tell him.", "tell", "--json"]
    found = []
    for chosen in ([], ["--occurrence", "1"], ["--occurrence", "2"]):
        capsys.readouterr()
        assert main([*command, *chosen]) == 0
        said = capsys.readouterr()
        found.append({sense["key"]: sense["score"] for sense in json.loads(said.out)})
        assert ("2 times: this is the first" in said.err) is (not chosen)
    assert found[0] == found[1]
    assert set(found[0]) == set(found[2])
    assert found[0] != found[2]
    for wrong in ("0", "3"):
        assert main([*command, "--occurrence", wrong]) == 2
        assert f"Invalid occurrence: {wrong}, 'tell' stands" in capsys.readouterr().err
    for word in ("", "  "):
        assert main(["wsd", "predict", run, "They tell me.", word]) == 2
        assert "no word is given" in capsys.readouterr().err
    assert main([*command[:-1], "--top", "1"]) == 0
    header, best = capsys.readouterr().out.splitlines()
    assert header.split() == ["logit", "sense", "key", "definition"]
    assert best.split()[2].startswith("tell%2:")


@pytest.fixture
def trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a backbone, a run of it in `runs/one`, and its tables in the cache alone."""
    monkeypatch.setenv("LONGTAIL_CACHE", str(tmp_path / "cache"))
    home = tmp_path / "home"
    source = wsd_backbones.backbone(home / "encoder")
    wsd_backbones.tables(tmp_path / "cache" / "wsd" / "prepared-0", source)
    monkeypatch.chdir(home)
    wsd._from_corpus.cache_clear()
    assert main(["run", "wsd", "--backbone", "encoder", *SMALL, "--out", "runs/one"]) == 0
    wsd._from_corpus.cache_clear()
    monkeypatch.setattr(wsd, "read_corpus", None)  # nothing is tokenised for a sentence
    return home


def predict(run: Path, capsys: pytest.CaptureFixture[str], code: int = 0) -> str:
    capsys.readouterr()
    assert main(["wsd", "predict", str(run), "They tell me.", "tell", "--json"]) == code
    said = capsys.readouterr()
    return said.err if code else said.out


def test_a_run_is_used_from_another_folder_and_after_a_move(
    trained: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    here = predict(Path("runs/one"), capsys)
    assert len(json.loads(here)) == 9
    monkeypatch.chdir(tmp_path)
    assert predict(trained / "runs" / "one", capsys) == here
    shutil.move(trained, tmp_path / "moved")
    assert predict(Path("moved/runs/one"), capsys) == here
    wsd_backbones.backbone(tmp_path / "encoder", words_first=2)  # of the same name, and another
    assert predict(Path("moved/runs/one"), capsys) == here


def test_tables_are_found_though_the_corpus_is_gone(trained: Path, tmp_path: Path, capsys) -> None:
    here = predict(Path("runs/one"), capsys)
    config = trained / "runs" / "one" / "config.toml"
    text = config.read_text()
    config.write_text(text.replace('semcor = ""', 'semcor = "gone"'))
    assert predict(Path("runs/one"), capsys) == here
    other = wsd_backbones.backbone(tmp_path / "other", words_first=3)
    wsd_backbones.tables(tmp_path / "cache" / "wsd" / "prepared-1", other)  # newer ones
    assert predict(Path("runs/one"), capsys) == here
    config.write_text(text.replace('prepared = ""', 'prepared = "gone"'))
    assert predict(Path("runs/one"), capsys) == here
    shutil.rmtree(tmp_path / "cache")
    assert "token tables are not in the cache: give WordNet" in predict(Path("runs/one"), capsys, 2)


def test_tables_are_found_for_a_backbone_without_a_tokeniser(trained: Path, capsys) -> None:
    here = predict(Path("runs/one"), capsys)
    (trained / "encoder" / "tokenizer.json").unlink()
    assert predict(Path("runs/one"), capsys) == here


def test_without_tables_wordnet_has_the_senses(
    trained: Path, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(wordnet, "SENSES_OF_3_0", 2)
    shutil.rmtree(tmp_path / "cache")
    glosses = {"noun": [], "verb": ["let know", "narrate"], "adj": [], "adv": []}
    lines = [("tell", "2:32:00::", "verb", 0, 1, 9), ("tell", "2:32:01::", "verb", 1, 2, 3)]
    write_wordnet(tmp_path / "cache" / "wsd" / "dict", glosses, lines)
    found = {
        sense["key"]: sense["gloss"] for sense in json.loads(predict(Path("runs/one"), capsys))
    }
    assert found == {"tell%2:32:00::": "let know", "tell%2:32:01::": "narrate"}
    assert not list((tmp_path / "cache" / "wsd").glob("prepared-*"))


def test_folders_of_older_runs_still_work(trained: Path, capsys) -> None:
    """They note neither where they were started nor which tables they had."""
    here = predict(Path("runs/one"), capsys)
    for name, key in (("timing.json", "directory"), ("summary.json", "tables")):
        path = trained / "runs" / "one" / name
        content = json.loads(path.read_text())
        del content[key]
        path.write_text(json.dumps(content))
    assert predict(Path("runs/one"), capsys) == here


def test_what_a_run_notes_names_no_folder_of_the_machine(trained: Path, tmp_path: Path) -> None:
    for path in (trained / "runs" / "one").iterdir():
        if path.suffix in (".json", ".jsonl", ".toml"):
            assert str(tmp_path) not in path.read_text()
