"""WAV files, spectrograms, and the loaders of spoken words."""

from pathlib import Path

import numpy as np
import pytest

from fedsim.data import load_dataset, make_federation
from fedsim.data.audio import RATE, filter_bank, fit_one_second, log_mel, read_spectrograms, read_wav
from fedsim.data.sources.speech import match_name
from fedsim.errors import DataError, DataNotFound, SpecError
from tests.fedsim.data.samples import write_wav


@pytest.mark.parametrize("width", [1, 2, 3, 4])
@pytest.mark.parametrize("channels", [1, 2])
def test_every_width_and_number_of_channels_gives_the_same_samples(tmp_path: Path, width: int, channels: int):
    write_wav(tmp_path / "a.wav", width=width, channels=channels)
    samples, rate = read_wav(tmp_path / "a.wav")
    wanted = 0.5 * np.sin(2 * np.pi * 440 * np.arange(4000) / 8000)
    assert rate == 8000
    assert samples == pytest.approx(wanted, abs=1.5 / 2 ** (8 * width - 1) + 1e-7)


@pytest.mark.parametrize("rate", [8_000, 16_000, 44_100])
def test_a_tone_keeps_its_pitch_and_lands_in_its_band(tmp_path: Path, rate: int):
    write_wav(tmp_path / "a.wav", frequency=1000.0, seconds=1.0, rate=rate)
    clip = fit_one_second(*read_wav(tmp_path / "a.wav"))
    assert clip.shape == (RATE,)
    picture = log_mel(clip[None])
    assert picture.shape == (1, 1, 32, 32)
    # Bands are even on the mel scale: 1 kHz is 1000 mel of 2840, corner 11.6 of 33: bands 10 and 11.
    assert picture[0, 0, :, 16].argmax() in (10, 11)


def test_bands_are_triangles_of_height_one_that_overlap_by_half():
    bank = filter_bank()
    assert bank.shape == (32, 513)
    assert bank.max() <= 1
    first, last = bank[0].argmax() + 1, bank[-1].argmax()
    assert bank[:, first:last].sum(axis=0) == pytest.approx(1, abs=1e-9)
    assert (bank.sum(axis=1) > 0).all()


def test_spectrograms_are_standardised_and_silence_is_flat(tmp_path: Path):
    write_wav(tmp_path / "a.wav")
    picture = read_spectrograms([tmp_path / "a.wav"])
    assert picture.dtype == np.float32
    assert picture.mean() == pytest.approx(0, abs=1e-4)
    assert picture.std() == pytest.approx(1, abs=1e-2)
    assert np.abs(log_mel(np.zeros((1, RATE), np.float32))).max() < 1e-3
    assert read_spectrograms([]).shape == (0, 1, 32, 32)


def test_long_recordings_are_cut_and_short_ones_padded():
    assert fit_one_second(np.ones(20_000, np.float32), RATE).sum() == RATE
    assert fit_one_second(np.ones(10, np.float32), RATE).sum() == 10


def test_damaged_recordings_are_named(tmp_path: Path):
    write_wav(tmp_path / "a.wav")
    whole = (tmp_path / "a.wav").read_bytes()
    (tmp_path / "a.wav").write_bytes(whole[:-100])
    with pytest.raises(DataError, match=r"a\.wav: truncated, 7900 bytes of sound of 8000"):
        read_wav(tmp_path / "a.wav")
    (tmp_path / "a.wav").write_bytes(whole[:30])
    with pytest.raises(DataError, match=r"a\.wav: is not a PCM WAV file"):
        read_wav(tmp_path / "a.wav")
    (tmp_path / "a.wav").write_bytes(b"OggS" + whole[4:])
    with pytest.raises(DataError, match=r"a\.wav: is not a PCM WAV file"):
        read_wav(tmp_path / "a.wav")


def write_digits(root: Path) -> Path:
    for digit in range(10):
        for speaker in ("ann", "bob"):
            for take in (0, 5, 6):
                write_wav(root / "spoken-digits" / f"{digit}_{speaker}_{take}.wav", 200.0 * (digit + 1), 0.1)
    return root / "spoken-digits"


def test_spoken_digits_have_speakers_as_natural_clients(tmp_path: Path):
    write_digits(tmp_path)
    data = load_dataset("spoken_digits", roots=[tmp_path])
    assert (len(data.train), len(data.test)) == (40, 20)
    assert data.input_shape == (1, 32, 32)
    assert data.train.y[:10].tolist() == list(range(10))
    federation = make_federation(data, "natural", num_clients=2, seed=0)
    for client in range(2):
        held = federation.train.client_positions(client)
        assert data.train.groups is not None
        assert set(data.train.groups[held].tolist()) == {client}
        assert len(held) == 20


@pytest.mark.parametrize("takes", [0, 5])
def test_a_limit_leaves_every_word_and_every_speaker_alike(tmp_path: Path, takes: int):
    """Four words of six speakers, two takes each to train on: 24 pairs, each once before one comes again."""
    for word in "abcd":
        for speaker in range(6):
            for take in (3, 5, 6) if takes else (5, 6):
                write_wav(tmp_path / "mine" / f"{word}_{speaker}_{take}.wav", seconds=0.01)
    given = {"roots": [tmp_path], "path": "mine", "test_takes": takes, "test_share": 0.0}
    for limit in range(1, 49):
        held = load_dataset("audio_folder", limit=limit, **given).train
        assert held.groups is not None
        pairs = held.y * 6 + held.groups
        for numbers, most in ((held.y, 4), (held.groups, 6), (pairs, 24)):
            assert np.ptp(np.bincount(numbers, minlength=most)) <= 1


def test_speakers_of_few_words_come_as_evenly_as_they_can(tmp_path: Path):
    """Ann says both words, Bob and Cy one each: ann, then those who have been taken less often."""
    for name in ("ja_ann", "ja_bob", "nein_ann", "nein_cy"):
        for take in range(2):
            write_wav(tmp_path / "mine" / f"{name}_{take}.wav", seconds=0.01)
    held = load_dataset("audio_folder", roots=[tmp_path], path="mine", test_share=0.0).train
    assert held.groups is not None
    assert held.y.tolist() == [0, 1] * 4
    assert np.bincount(held.groups[:3]).tolist() == [1, 1, 1]
    assert np.bincount(held.groups[:6]).tolist() == [2, 2, 2]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("ten_ann_0.wav", "'ten' is not a digit"),
        ("0_ann.wav", "does not match"),
        ("0_ann_x.wav", "does not match"),
    ],
)
def test_a_misnamed_digit_is_named(tmp_path: Path, name: str, words: str):
    folder = write_digits(tmp_path)
    write_wav(folder / name)
    with pytest.raises(DataError, match=rf"{name}: {words}"):
        load_dataset("spoken_digits", roots=[tmp_path])


def test_audio_folder_reads_labels_and_speakers_from_names(tmp_path: Path):
    for word in ("ja", "nein"):
        for speaker in ("ann", "bob", "cy"):
            for take in range(4):
                write_wav(tmp_path / "mine" / word / f"{speaker}-x-{take}.wav", seconds=0.1)
    given = {"path": "mine", "pattern": "{label}/{speaker}-*-{take}"}
    data = load_dataset("audio_folder", roots=[tmp_path], **given)
    assert data.classes == ("ja", "nein")
    assert (len(data.train), len(data.test)) == (19, 5)
    assert data.train.groups is not None
    assert set(data.train.groups.tolist()) == {0, 1, 2}
    data = load_dataset("audio_folder", roots=[tmp_path], test_takes=1, **given)
    assert (len(data.train), len(data.test)) == (18, 6)
    data = load_dataset("audio_folder", roots=[tmp_path], path="mine", pattern="{label}/*")
    assert data.train.groups is None


def test_endings_in_capitals_are_read_and_hidden_files_are_not(tmp_path: Path):
    folder = write_commands(tmp_path, ("yes", "no"))
    for root, name in ((tmp_path / "mine", "yes_ann_{}"), (folder / "yes", "0a7c2a8d_nohash_{}")):
        write_wav(root / f"{name.format(1)}.WAV", seconds=0.1, rate=16_000)
        write_wav(root / f"{name.format(2)}.wav", seconds=0.1, rate=16_000)
        (root / f"._{name.format(2)}.wav").write_bytes(b"Mac OS X")
    own = load_dataset("audio_folder", roots=[tmp_path], path="mine", test_share=0.0)
    assert (len(own.train), own.classes) == (2, ("yes",))
    commands = load_dataset("speech_commands", roots=[tmp_path], words="all")
    assert len(commands.train) == 5


@pytest.mark.parametrize(
    "given", [{"pattern": "{speaker}_{take}"}, {"pattern": "{label}_{speaker}", "test_takes": 2}]
)
def test_a_pattern_that_says_too_little_is_refused(tmp_path: Path, given: dict):
    with pytest.raises(SpecError, match=r"needs .label"):
        load_dataset("audio_folder", roots=[tmp_path], path="mine", **given)


@pytest.mark.parametrize("field", ["label", "speaker", "take"])
def test_a_pattern_that_says_one_thing_twice_is_refused(tmp_path: Path, field: str):
    with pytest.raises(SpecError, match=rf"pattern.*has {{{field}}} more than once .*write \*"):
        load_dataset(
            "audio_folder",
            roots=[tmp_path],
            path="mine",
            pattern=f"{{{field}}}/{{label}}_{{speaker}}_{{take}}",
        )


def test_an_audio_folder_without_recordings_is_named(tmp_path: Path):
    (tmp_path / "mine").mkdir()
    with pytest.raises(DataError, match=r"has no \.wav files"):
        load_dataset("audio_folder", roots=[tmp_path], path="mine")


def write_commands(root: Path, words: tuple[str, ...]) -> Path:
    folder = root / "speech_commands_v0.02"
    for word in words:
        for speaker in ("0a7c2a8d", "0b09edd3", "1c1060b1"):
            write_wav(folder / word / f"{speaker}_nohash_0.wav", seconds=0.1, rate=16_000)
    (folder / "testing_list.txt").write_text("".join(f"{word}/0b09edd3_nohash_0.wav\n" for word in words))
    (folder / "validation_list.txt").write_text(f"{words[0]}/1c1060b1_nohash_0.wav\n")
    write_wav(folder / "_background_noise_" / "pink_noise.wav")
    return folder


TEN = ("yes", "no", "up", "down", "left", "right", "on", "off", "stop", "go")


def test_speech_commands_follow_the_archives_own_lists(tmp_path: Path):
    write_commands(tmp_path, (*TEN, "cat"))
    data = load_dataset("speech_commands", roots=[tmp_path])
    assert data.classes == TEN
    assert (len(data.train), len(data.test)) == (19, 10)
    assert data.train.groups is not None
    assert data.test.groups is not None
    assert np.unique(data.test.groups).tolist() == [1]
    data = load_dataset("speech_commands", roots=[tmp_path], words="all")
    assert data.classes == tuple(sorted((*TEN, "cat")))
    assert len(data.test) == 11


def test_a_list_and_recordings_that_differ_are_named(tmp_path: Path):
    folder = write_commands(tmp_path, TEN)
    (folder / "up" / "0b09edd3_nohash_0.wav").unlink()
    with pytest.raises(DataError, match=r"testing_list\.txt: line 3 names 'up/0b09edd3_nohash_0\.wav'"):
        load_dataset("speech_commands", roots=[tmp_path])
    write_wav(folder / "up" / "0b09edd3_nohash_0.wav", seconds=0.1, rate=16_000)
    write_wav(folder / "up" / "stray.wav", seconds=0.1, rate=16_000)
    with pytest.raises(DataError, match=r"stray\.wav: does not match"):
        load_dataset("speech_commands", roots=[tmp_path])


def test_a_word_without_recordings_is_named(tmp_path: Path):
    write_commands(tmp_path, TEN[:-1])
    with pytest.raises(DataError, match="go: has no recordings"):
        load_dataset("speech_commands", roots=[tmp_path])


@pytest.mark.parametrize("name", ["speech_commands", "spoken_digits"])
def test_what_is_nowhere_says_how_to_get_it(tmp_path: Path, name: str):
    with pytest.raises(DataNotFound) as caught:
        load_dataset(name, roots=[tmp_path])
    assert caught.value.hint


@pytest.mark.parametrize(
    ("pattern", "name", "fields"),
    [
        ("{label}_{speaker}_{take}", "yes_ann_3", {"label": "yes", "speaker": "ann", "take": "3"}),
        ("{label}_{speaker}_{take}", "yes_ann_x", None),
        ("*/{label}-*", "a/yes-b-c", {"label": "yes-b"}),
        ("{label}*{take}", "yes12", {"label": "yes1", "take": "2"}),
        ("{label}(1)", "yes(1)", {"label": "yes"}),
    ],
)
def test_names_match_as_a_regular_expression_does(pattern: str, name: str, fields: dict[str, str] | None):
    assert match_name(pattern, name) == fields


def test_no_pattern_takes_long():
    """A regular expression of these stars would run for hours."""
    assert match_name("*" * 19 + "{label}!", "a" * 200) is None


def test_a_pattern_of_too_many_stars_is_refused(tmp_path: Path):
    with pytest.raises(SpecError, match="more than 20 fields"):
        load_dataset("audio_folder", roots=[tmp_path], path="mine", pattern="*-" * 20 + "{label}{take}")
