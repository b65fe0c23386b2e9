"""A folder with GQA's files, or with your own in their form, as a source of questions."""

from collections.abc import Container, Iterable, Iterator
from pathlib import Path

from longtail.support.cache import cache_folder
from longtail_bench.prepared import fingerprint
from longtail_bench.vqa.gqa.features import FeatureFiles, feature_files, read_regions
from longtail_bench.vqa.gqa.questions import question_files, read_questions
from longtail_bench.vqa.gqa.scenes import count_names, scene_files
from longtail_bench.vqa.options import DataOptions
from longtail_bench.vqa.prepared import ImageRegions
from longtail_bench.vqa.problems import Problems
from longtail_bench.vqa.tasks import Question


class Files:
    """What `prepare` reads. Region features may be missing: questions can be looked at alone."""

    def __init__(self, options: DataOptions) -> None:
        folder = files_folder(options.folder)
        if not folder.is_dir():
            raise ValueError(f"{folder} is no folder; `longtail data vqa` says what goes there")
        self.folder = folder
        self._train = question_files(folder, "train", options.questions)
        self._test = question_files(folder, "val", options.questions)
        self._scenes = scene_files(folder)
        self.features = feature_files(folder)

    @property
    def made_of(self) -> str:
        features = self._found_features().files
        return fingerprint([*self._train, *self._test, *self._scenes, *features])

    def names(self, problems: Problems) -> list[str]:
        return [name for name, _ in count_names(self._scenes, problems).most_common()]

    def train(self, problems: Problems) -> Iterable[Question]:
        return read_questions(self._train, problems)

    def test(self, problems: Problems) -> Iterable[Question]:
        return read_questions(self._test, problems)

    def regions(
        self, wanted: Container[str], problems: Problems, most: int
    ) -> Iterator[ImageRegions]:
        return read_regions(self._found_features(), wanted, problems, most)

    def _found_features(self) -> FeatureFiles:
        if self.features is None:
            raise ValueError(
                f"{self.folder} holds no region features: neither features.tsv nor IMAGE.npz"
            )
        return self.features


def files_folder(given: str | None) -> Path:
    """Where the files are looked for."""
    return Path(given).expanduser() if given else cache_folder("gqa")
