"""SemCor tag files are read as published, and what is wrong with one is named with its line."""

import random
import tarfile
from pathlib import Path

import pytest

from longtail_bench.wsd.semcor import open_tar, read_semcor

GOOD = """<contextfile concordance=brown>
<context filename=br-a01 paras=yes>
<p pnum=1>
<s snum=1>
<wf cmd=ignore pos=DT>The</wf>
<wf cmd=done pos=NN lemma=Mouse wnsn=1 lexsn=1:05:00::>mouse</wf>
<wf cmd=done pos=VB lemma=take_place wnsn=1;2 lexsn=2:30:00::;2:30:01::>took_place</wf>
<wf cmd=done pos=NN lemma=zero wnsn=0 lexsn=>zero</wf>
<punc>.</punc>
</s>
</p>
</context>
</contextfile>
"""


def write(folder: Path, text: str, name: str = "br-a01") -> Path:
    path = folder / "brown1" / "tagfiles" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, "latin-1")
    return path


def test_reads_sentences_and_targets(tmp_path: Path) -> None:
    write(tmp_path, GOOD)
    corpus = read_semcor(tmp_path)
    assert corpus.sentences == [["The", "mouse", "took place", "zero", "."]]
    first, second = corpus.targets
    assert (first.lemma, first.position, first.senses) == ("mouse", 1, (("1:05:00::", 1),))
    assert second.senses == (("2:30:00::", 1), ("2:30:01::", 2))
    assert first.place == "brown1/tagfiles/br-a01, line 6"
    assert corpus.files == 1


def test_an_archive_gives_what_its_folder_gives(tmp_path: Path) -> None:
    write(tmp_path / "semcor", GOOD, "br-b02")
    write(tmp_path / "semcor", GOOD, "br-a01")
    with tarfile.open(tmp_path / "semcor.tar.xz", "w:xz") as archive:
        archive.add(tmp_path / "semcor", "semcor3.0")
    assert read_semcor(tmp_path / "semcor.tar.xz") == read_semcor(tmp_path / "semcor")


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("<punc>.</punc>", "<punc>.<punc>", "br-a01, line 9: not a SemCor element"),
        ("wnsn=1 ", "wnsn=one ", "br-a01, line 6: wnsn=one"),
        ("wnsn=1;2", "wnsn=1", "br-a01, line 7: a tagged word needs"),
        ("<s snum=1>\n", "", "br-a01, line 4: a word outside any sentence"),
        (GOOD[GOOD.index("</s>") :], "", "br-a01, line 9: ends inside a sentence"),
        ("</s>\n", "", "br-a01, line 12: ends inside a sentence"),
        (GOOD[GOOD.index("</p>") :], "", "br-a01, line 10: ends without </contextfile>"),
        ("</contextfile>\n", "\n\n", "br-a01, line 12: ends without </contextfile>"),
        (GOOD, "", "br-a01, line 1: the file is empty"),
        (GOOD, "\n \n", "br-a01, line 1: the file is empty"),
        ("</s>", "<s snum=2>", "br-a01, line 10: <s> before the </s>"),
    ],
)
def test_a_malformed_file_is_named_with_its_line(
    tmp_path: Path, old: str, new: str, said: str
) -> None:
    write(tmp_path, GOOD.replace(old, new))
    with pytest.raises(ValueError, match=said):
        read_semcor(tmp_path)


def test_empty_folders_and_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no SemCor tag files"):
        read_semcor(tmp_path)
    with pytest.raises(ValueError, match="No such file"):
        read_semcor(tmp_path / "absent")
    (tmp_path / "a.tar").write_bytes(b"not an archive")
    with pytest.raises(ValueError, match=r"a\.tar is not a readable tar archive: .*") as said:
        read_semcor(tmp_path / "a.tar")
    assert "\n" not in str(said.value)


@pytest.mark.parametrize("kind", ["xz", "gz", "bz2"])
@pytest.mark.parametrize("damage", ["middle", "cut"])
def test_a_damaged_archive_is_named(tmp_path: Path, kind: str, damage: str) -> None:
    noise = random.Random(0).randbytes(40_000).decode("latin-1")  # so that there is a middle
    write(tmp_path / "semcor", GOOD + noise)
    path = tmp_path / f"semcor.tar.{kind}"
    with tarfile.open(path, f"w:{kind}") as archive:  # pyright: ignore
        archive.add(tmp_path / "semcor", "semcor3.0")
    content = bytearray(path.read_bytes())
    half = len(content) // 2
    content[half:] = b"" if damage == "cut" else bytes(64) + content[half + 64 :]
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"semcor\.tar\.{kind} is not a readable tar archive: ."):
        read_semcor(path)


def test_only_what_the_archive_has_done_is_blamed_on_it(tmp_path: Path) -> None:
    path = tmp_path / "some.tar"
    with tarfile.open(path, "w") as packed:
        member = tarfile.TarInfo("../outside")
        packed.addfile(member)
    with pytest.raises(OSError, match="disk is full"), open_tar(path):
        raise OSError("disk is full")
    with (
        pytest.raises(ValueError, match=r"some\.tar cannot be unpacked: .*outside"),
        open_tar(path) as tar,
    ):
        tar.extractall(tmp_path / "in", filter="data")
