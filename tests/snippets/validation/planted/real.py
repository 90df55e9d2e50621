"""Models that nobody here wrote, tiny and with random weights, and a small ResNet."""

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """The basic block of a ResNet."""

    def __init__(self, before: int, after: int, stride: int):
        super().__init__()
        self.conv1 = nn.Conv2d(before, after, 3, stride, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(after)
        self.conv2 = nn.Conv2d(after, after, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(after)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or before != after:
            self.shortcut = nn.Sequential(nn.Conv2d(before, after, 1, stride, bias=False), nn.BatchNorm2d(after))

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm1(self.conv1(x)))
        return torch.relu(self.norm2(self.conv2(y)) + self.shortcut(x))


class ResNet(nn.Sequential):
    def __init__(self, classes: int = 10):
        stem = [nn.Conv2d(3, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
        blocks = [Block(16, 16, 1), Block(16, 32, 2), Block(32, 64, 2)]
        super().__init__(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))


def resnet() -> tuple[nn.Module, Tensor]:
    return ResNet(), torch.randn(4, 3, 32, 32)


SMALL = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 4}


def llama() -> tuple[nn.Module, dict]:
    from transformers import LlamaConfig, LlamaForCausalLM

    ids = torch.randint(0, 256, (2, 16))
    model = LlamaForCausalLM(LlamaConfig(vocab_size=256, num_key_value_heads=2, use_cache=False, **SMALL))
    return model, {"input_ids": ids, "labels": ids}


def bert() -> tuple[nn.Module, dict]:
    from transformers import BertConfig, BertForMaskedLM

    ids = torch.randint(0, 256, (2, 16))
    return BertForMaskedLM(BertConfig(vocab_size=256, **SMALL)), {"input_ids": ids, "labels": ids}


def vit() -> tuple[nn.Module, dict]:
    from transformers import ViTConfig, ViTForImageClassification

    model = ViTForImageClassification(ViTConfig(image_size=32, patch_size=8, num_labels=10, **SMALL))
    return model, {"pixel_values": torch.randn(2, 3, 32, 32), "labels": torch.tensor([1, 2])}


def whisper() -> tuple[nn.Module, dict]:
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    config = WhisperConfig(
        vocab_size=256, d_model=64, encoder_layers=1, decoder_layers=1, encoder_attention_heads=4,
        decoder_attention_heads=4,
        encoder_ffn_dim=128, decoder_ffn_dim=128, max_source_positions=32, max_target_positions=32, num_mel_bins=8,
        pad_token_id=0, bos_token_id=1, eos_token_id=2, decoder_start_token_id=1, use_cache=False, suppress_tokens=None,
        begin_suppress_tokens=None,
    )  # fmt: skip
    ids = torch.randint(3, 256, (2, 12))
    return WhisperForConditionalGeneration(config), {"input_features": torch.randn(2, 8, 64), "labels": ids}


def mixtral() -> tuple[nn.Module, dict]:
    from transformers import MixtralConfig, MixtralForCausalLM

    ids = torch.randint(0, 256, (2, 16))
    config = MixtralConfig(vocab_size=256, num_key_value_heads=2, num_local_experts=4, use_cache=False, **SMALL)
    return MixtralForCausalLM(config), {"input_ids": ids, "labels": ids}


MODELS = {"ResNet": resnet, "Llama": llama, "BERT": bert, "ViT": vit, "Whisper": whisper, "Mixtral": mixtral}
