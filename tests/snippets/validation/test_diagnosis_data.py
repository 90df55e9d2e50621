"""What the programs that wait for data load and copy."""

import torch

from snippets.validation.diagnosis_data import Photos, brightness


def test_a_photo_is_decoded_to_the_same_each_time():
    assert torch.equal(Photos()[7], Photos()[7]) and Photos()[7].shape == (4096,)


def test_bytes_are_as_bright_as_floats():
    pixels = torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8)
    assert torch.equal(brightness(pixels), brightness(pixels.float()))
