"""Reuters-21578 and the tokenizers, on small files of the real format."""

from pathlib import Path

import numpy as np
import pytest

from fedsim.data import load_dataset
from fedsim.data.places import DataRoots
from fedsim.data.sources.reuters import read_mod_apte
from fedsim.data.text import tokenise_texts
from fedsim.errors import DataError, DataNotFound, SpecError

STORY = """<REUTERS TOPICS="{topics}" LEWISSPLIT="{split}" CGISPLIT="TRAINING-SET" OLDID="1" NEWID="{number}">
<DATE>26-FEB-1987 15:01:01.79</DATE>
<TOPICS>{names}</TOPICS>
<PLACES><D>usa</D></PLACES>
<TEXT{kind}>&#2;
{text}
&#3;</TEXT>
</REUTERS>
"""


def story(number: int, names: str, split: str = "TRAIN", topics: str = "YES", bare: bool = False) -> str:
    text = f"<TITLE>STORY {number}</TITLE>\n<BODY>Prices of {names} rose &lt;RTRS> in {number}.\n End</BODY>"
    return STORY.format(
        number=number,
        names="".join(f"<D>{name}</D>" for name in names.split()),
        split=split,
        topics=topics,
        kind=' TYPE="UNPROC"' if bare else "",
        text=f"bare words {number}" if bare else text,
    )


def write_reuters(root: Path) -> Path:
    """File 0 holds the training stories, file 21 the test stories, the others one story of neither."""
    folder = root / "reuters21578"
    folder.mkdir()
    other = story(999, "earn", split="NOT-USED")
    for number in range(22):
        (folder / f"reut2-{number:03d}.sgm").write_text('<!DOCTYPE lewis SYSTEM "lewis.dtd">\n' + other)
    training = [
        story(n, name)
        for n, name in enumerate(["acq", "earn", "earn", "wheat corn", "", "corn", "earn", "acq"])
    ]
    training.append(story(20, "earn", topics="NO"))
    training.append(story(21, "acq", bare=True))
    (folder / "reut2-000.sgm").write_text("".join(training), encoding="latin-1")
    (folder / "reut2-021.sgm").write_text(
        story(30, "earn", "TEST") + story(31, "corn", "TEST") + story(32, "acq", "TEST")
    )
    return folder


def test_the_mod_apte_split_and_its_texts(tmp_path: Path):
    train, test = read_mod_apte(write_reuters(tmp_path))
    assert (len(train), len(test)) == (9, 3)
    assert train[3].topics == ("wheat", "corn")
    assert train[0].text == "STORY 0 Prices of acq rose <RTRS> in 0.  End"
    assert train[8].text == "bare words 21"


def test_a_truncated_file_is_named(tmp_path: Path):
    file = write_reuters(tmp_path) / "reut2-000.sgm"
    file.write_text(file.read_text()[:-30])
    with pytest.raises(DataError, match=r"reut2-000\.sgm: truncated, 9 complete stories of 10"):
        read_mod_apte(file.parent)


def test_a_missing_file_is_named(tmp_path: Path):
    folder = write_reuters(tmp_path)
    (folder / "reut2-013.sgm").unlink()
    with pytest.raises(DataError, match=r"reut2-013\.sgm: is missing"):
        read_mod_apte(folder)


def test_more_topics_than_there_are_is_refused(tmp_path: Path):
    write_reuters(tmp_path)
    with pytest.raises(SpecError, match="only 3 topics"):
        load_dataset("reuters", roots=[tmp_path], topics=4)


def test_reuters_is_nowhere(tmp_path: Path):
    with pytest.raises(DataNotFound, match=r"reuters21578\.tar\.gz"):
        load_dataset("reuters", roots=[tmp_path])


def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    with pytest.raises(DataNotFound, match=r"need the package 'tokenizers' \(install the extra: .*\[text\]"):
        tokenise_texts(DataRoots(), ["a"], ["b"], tokenizer="bpe", vocabulary=100, length=4)


def test_reuters_keeps_stories_of_one_frequent_topic(tmp_path: Path):
    pytest.importorskip("tokenizers", reason="the extra 'text' is not installed")
    write_reuters(tmp_path)
    data = load_dataset("reuters", roots=[tmp_path], topics=2, length=16, vocabulary=200)
    # Three stories each of acq and earn: the tie goes by the alphabet. Corn, with one story, goes.
    assert data.classes == ("acq", "earn")
    assert data.train.y.tolist() == [0, 1, 1, 1, 0, 0]
    assert data.test.y.tolist() == [1, 0]
    assert data.train.x.shape == (6, 16)
    assert data.train.x.dtype == np.int32
    assert 0 < data.train.x.max() < data.vocabulary <= 200


TEXTS = ["the cat sat on the mat", "the dog sat", "a cat and a dog"] * 5


def test_a_trained_tokenizer_is_the_same_every_time():
    pytest.importorskip("tokenizers", reason="the extra 'text' is not installed")
    made = [
        tokenise_texts(DataRoots(), TEXTS, ["the cow"], tokenizer="bpe", vocabulary=100, length=6)
        for _ in range(3)
    ]
    assert all(np.array_equal(made[0].train, other.train) for other in made[1:])
    # The first token is [CLS] = 2; what the training texts have not is [UNK] = 1; 0 is padding.
    assert made[0].train[1].tolist()[0] == 2
    assert made[0].train[1].tolist()[-1] == 0
    assert 1 in made[0].test[0]


def test_a_tokenizer_in_a_data_root_is_used(tmp_path: Path):
    tokenizers = pytest.importorskip("tokenizers", reason="the extra 'text' is not installed")
    (tmp_path / "mine").mkdir()
    words = {"[PAD]": 0, "[UNK]": 1, "cat": 2}
    mine = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    mine.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    mine.save(str(tmp_path / "mine" / "tokenizer.json"))
    made = tokenise_texts(
        DataRoots((tmp_path,)), TEXTS, ["the cat"], tokenizer="mine", vocabulary=100, length=4
    )
    assert made.test.tolist() == [[1, 2, 0, 0]]
    assert made.vocabulary == 3
    with pytest.raises(DataNotFound, match=r"tokenizer 'yours': found none of yours/tokenizer\.json"):
        tokenise_texts(DataRoots((tmp_path,)), TEXTS, [], tokenizer="yours", vocabulary=100, length=4)
    with pytest.raises(SpecError, match="inside a data root"):
        tokenise_texts(DataRoots((tmp_path,)), TEXTS, [], tokenizer="../mine", vocabulary=100, length=4)
    (tmp_path / "mine" / "tokenizer.json").write_text("{")
    with pytest.raises(DataError, match="tokenizer 'mine': cannot be read"):
        tokenise_texts(DataRoots((tmp_path,)), TEXTS, [], tokenizer="mine", vocabulary=100, length=4)


def test_another_file_of_a_tokenizer_of_that_name_makes_other_tokens(tmp_path: Path):
    tokenizers = pytest.importorskip("tokenizers", reason="the extra 'text' is not installed")
    write_reuters(tmp_path)
    (tmp_path / "mine").mkdir()
    for number in (2, 3):
        words = {"[PAD]": 0, "[UNK]": 1, "Prices": number}
        mine = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
        mine.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
        mine.save(str(tmp_path / "mine" / "tokenizer.json"))
        data = load_dataset("reuters", roots=[tmp_path], topics=2, length=8, tokenizer="mine")
        assert data.train.x[0].tolist() == [1, 1, number, 1, 1, 1, 1, 1]


def test_a_tokenizer_that_pads_otherwise_is_refused(tmp_path: Path):
    tokenizers = pytest.importorskip("tokenizers", reason="the extra 'text' is not installed")
    (tmp_path / "mine").mkdir()
    tokenizers.Tokenizer(tokenizers.models.WordLevel({"a": 0, "[UNK]": 1}, unk_token="[UNK]")).save(
        str(tmp_path / "mine" / "tokenizer.json")
    )
    with pytest.raises(SpecError, match="no padding token with the number 0"):
        tokenise_texts(DataRoots((tmp_path,)), TEXTS, [], tokenizer="mine", vocabulary=100, length=4)
