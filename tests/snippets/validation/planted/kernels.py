"""What keeps the GPU's kernels from being as fast as they could be."""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.snippets.validation.planted.fusion import Attention
from tests.snippets.validation.planted.readiness import MLP


class MaskAsData(Attention):
    def __init__(self):
        super().__init__()
        self.register_buffer("mask", torch.ones(64, 64, dtype=torch.bool).tril())

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        mask = self.mask[: x.shape[1], : x.shape[1]]
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)  # fault: mask
        return self.out(y.transpose(1, 2).reshape(x.shape))


class AdditiveMask(Attention):
    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        mask = torch.full((x.shape[1], x.shape[1]), float("-inf"), device=x.device).triu(1)
        y = F.scaled_dot_product_attention(q, k, v, mask)  # fault: mask
        return self.out(y.transpose(1, 2).reshape(x.shape))


class WindowedAttention(Attention):
    """A mask that no flag says: what is hidden is also what lies far back."""

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.split(x)
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool, device=x.device).tril().triu(-4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
        return self.out(y.transpose(1, 2).reshape(x.shape))


class WideHead(nn.Module):
    """A model in bfloat16 whose head multiplies in fp32."""

    def __init__(self, width: int = 64, classes: int = 256):
        super().__init__()
        self.body, self.head = nn.Linear(width, width), nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(self.body(x))
        return F.linear(h.float(), self.head.weight.float())  # fault: precision


class WideHeadClean(WideHead):
    def forward(self, x: Tensor) -> Tensor:
        h = F.gelu(self.body(x))
        return F.linear(h, self.head.weight).float()


class DoubleGram(nn.Module):
    def __init__(self, width: int = 64):
        super().__init__()
        self.body = nn.Linear(width, width)

    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        return h.double().mT @ h.double()  # fault: precision


class DoubleGramClean(DoubleGram):
    def forward(self, x: Tensor) -> Tensor:
        h = self.body(x)
        return h.mT @ h


class OddVocabulary(nn.Module):
    def __init__(self, width: int = 64, vocabulary: int = 1023):
        super().__init__()
        self.body, self.head = MLP(width), nn.Linear(width, vocabulary, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x))  # fault: odd-size


class StepByStep(nn.Module):
    def __init__(self, width: int = 64):
        super().__init__()
        self.cell = nn.GRUCell(width, width)

    def forward(self, x: Tensor) -> Tensor:
        h, outputs = x.new_zeros(x.shape[0], x.shape[2]), []
        for t in range(16):
            h = self.cell(x[:, t], h)  # fault: small-kernels
            outputs.append(h)
        return torch.stack(outputs, dim=1)


class StepByStepClean(nn.Module):
    def __init__(self, width: int = 64):
        super().__init__()
        self.rnn = nn.GRU(width, width, batch_first=True)

    def forward(self, x: Tensor) -> Tensor:
        return self.rnn(x)[0]


class HeadByHead(nn.Module):
    def __init__(self, width: int = 64, tasks: int = 8):
        super().__init__()
        self.heads = nn.ModuleList(nn.Linear(width, 16) for _ in range(tasks))

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([torch.tanh(head(x)) for head in self.heads], dim=-1)  # fault: small-kernels


class HeadByHeadClean(nn.Module):
    def __init__(self, width: int = 64, tasks: int = 8):
        super().__init__()
        self.heads = nn.Linear(width, 16 * tasks)

    def forward(self, x: Tensor) -> Tensor:
        return torch.tanh(self.heads(x))


class DeepStack(nn.Module):
    """Twelve layers in a loop, as every transformer has them: no fault."""

    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList(MLP() for _ in range(12))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = x + layer(x)
        return x


class StopsEarly(DeepStack):
    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            y = layer(x)
            if (y.norm() / x.norm()).item() < 1e-3:  # fault: sync
                break
            x = x + y
        return x


class ListsLengths(MLP):
    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        parts = x.split(lengths.tolist())  # fault: sync
        return torch.stack([MLP.forward(self, part).mean(0) for part in parts])


class ListsLengthsClean(MLP):
    def forward(self, x: Tensor, lengths: Tensor) -> Tensor:
        owner = torch.repeat_interleave(torch.arange(3, device=x.device), lengths, output_size=len(x))
        sums = x.new_zeros(3, x.shape[-1]).index_add(0, owner, MLP.forward(self, x))
        return sums / lengths[:, None]


def sequence() -> Tensor:
    return torch.randn(2, 16, 64)


def ragged() -> tuple[Tensor, Tensor]:
    return torch.randn(12, 64), torch.tensor([3, 4, 5])


CASES = {
    "mask as data": (lambda: (MaskAsData(), sequence()), lambda: (Attention(), sequence())),
    "mask of -inf": (lambda: (AdditiveMask(), sequence()), lambda: (WindowedAttention(), sequence())),
    "fp32 head": (
        lambda: (WideHead().bfloat16(), sequence().bfloat16()),
        lambda: (WideHeadClean().bfloat16(), sequence().bfloat16()),
    ),
    "fp64 product": (lambda: (DoubleGram(), sequence()), lambda: (DoubleGramClean(), sequence())),
    "odd vocabulary": (
        lambda: (OddVocabulary().bfloat16(), sequence().bfloat16()),
        lambda: (OddVocabulary(), sequence()),  # fp32, without TF32
    ),
    "step by step": (lambda: (StepByStep(), sequence()), lambda: (StepByStepClean(), sequence())),
    "head by head": (lambda: (HeadByHead(), sequence()), lambda: (HeadByHeadClean(), sequence())),
    "stops early": (lambda: (StopsEarly(), sequence()), lambda: (DeepStack(), sequence())),
    "lengths as a list": (lambda: (ListsLengths(), *ragged()), lambda: (ListsLengthsClean(), *ragged())),
}
