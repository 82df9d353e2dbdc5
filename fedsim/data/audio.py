"""WAV files to log-mel spectrograms: one second at 16 kHz becomes an image of 32 frames by 32 bands."""

from __future__ import annotations

import math
import wave
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from fedsim.data.dataset import Array
from fedsim.errors import DataError

RATE = 16_000
_WINDOW = 1024
_HOP = 512
_BANDS = 32
_FLOOR = 1e-6
_CLIPS_AT_ONCE = 512
RECIPE = f"log-mel 1 rate={RATE} window={_WINDOW} hop={_HOP} bands={_BANDS}"


def read_spectrograms(files: Sequence[Path]) -> Array:
    """Return the log-mel spectrograms of WAV files, each standardised by itself.

    Args:
        files: of any rate and length; resampled to 16 kHz, cut or padded with silence to one second.

    Returns:
        float32 [n, 1, 32, 32]: bands by frames.

    Raises:
        DataError: if a file is truncated or not a PCM WAV file; the message names the file.
    """
    parts = [np.empty((0, 1, _BANDS, 1 + RATE // _HOP), np.float32)]
    for start in range(0, len(files), _CLIPS_AT_ONCE):
        clips = np.stack([fit_one_second(*read_wav(file)) for file in files[start : start + _CLIPS_AT_ONCE]])
        parts.append(log_mel(clips))
    return np.concatenate(parts)


def read_wav(file: Path) -> tuple[Array, int]:
    """Return a WAV file's samples, averaged over the channels, float32 from -1 to 1, and its rate in Hz.

    Raises:
        DataError: if it is truncated, or not a PCM WAV file.
    """
    try:
        with wave.open(str(file), "rb") as opened:
            channels, width, rate = opened.getnchannels(), opened.getsampwidth(), opened.getframerate()
            frames = opened.getnframes()
            raw = opened.readframes(frames)
    except (OSError, EOFError, wave.Error) as error:
        raise DataError(
            f"{file}: is not a PCM WAV file ({error})", "fetch it again, or convert it"
        ) from error
    if rate <= 0:
        raise DataError(f"{file}: its header says {rate} samples per second", "fetch it again, or convert it")
    if len(raw) != frames * width * channels or frames == 0:
        wanted = frames * width * channels
        raise DataError(f"{file}: truncated, {len(raw)} bytes of sound of {wanted}", "fetch it again")
    return _decode_samples(raw, width).reshape(-1, channels).mean(axis=1), rate


def _decode_samples(raw: bytes, width: int) -> Array:
    if width == 1:
        return (np.frombuffer(raw, np.uint8).astype(np.float32) - 128) / 128
    if width == 3:
        # The three bytes become the upper bytes of four, to keep the sign.
        wide = np.zeros((len(raw) // 3, 4), np.uint8)
        wide[:, 1:] = np.frombuffer(raw, np.uint8).reshape(-1, 3)
        return wide.view("<i4")[:, 0].astype(np.float32) / 2**31
    kind = {2: "<i2", 4: "<i4"}[width]
    return np.frombuffer(raw, kind).astype(np.float32) / float(2 ** (8 * width - 1))


def fit_one_second(samples: Array, rate: int) -> Array:
    """Resample to 16 kHz, then cut or pad with silence to 16,000 samples."""
    if rate != RATE:
        from scipy.signal import resample_poly  # slow to import, and rarely needed

        common = math.gcd(RATE, rate)
        samples = resample_poly(samples.astype(np.float64), RATE // common, rate // common)
    clip = np.zeros(RATE, np.float32)
    clip[: min(RATE, len(samples))] = samples[:RATE]
    return clip


def log_mel(clips: Array) -> Array:
    """Return log-mel spectrograms.

    Args:
        clips: float32 [n, 16000], at 16 kHz.

    Returns:
        float32 [n, 1, 32, 32], each with mean 0 and standard deviation 1 (all 0 for silence).
    """
    window = torch.hann_window(_WINDOW)
    spectrum = torch.stft(torch.from_numpy(clips), _WINDOW, _HOP, window=window, return_complex=True)
    bands = torch.from_numpy(filter_bank()).float() @ spectrum.abs().square()
    # In float64: rounding of a silent clip's mean would otherwise look like sound.
    logarithm = torch.log(bands + _FLOOR).double()
    mean = logarithm.mean(dim=(1, 2), keepdim=True)
    deviation = logarithm.std(dim=(1, 2), keepdim=True)
    picture: Array = ((logarithm - mean) / deviation.clamp_min(_FLOOR))[:, None].float().numpy()
    return picture


def filter_bank() -> Array:
    """Triangular bands, even on the mel scale (2595 log10(1 + f / 700)) from 0 to 8 kHz; [32, 513]."""
    top = 2595 * math.log10(1 + RATE / 2 / 700)
    corners = 700 * (10 ** (np.linspace(0, top, _BANDS + 2) / 2595) - 1)
    frequencies = np.linspace(0, RATE / 2, _WINDOW // 2 + 1)
    rising = (frequencies - corners[:-2, None]) / np.diff(corners)[:-1, None]
    falling = (corners[2:, None] - frequencies) / np.diff(corners)[1:, None]
    return np.asarray(np.clip(np.minimum(rising, falling), 0, None))
