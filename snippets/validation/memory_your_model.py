"""The peak of your own step, counted without a GPU: put your model, its inputs and its loss in the places of these.

Run `python -m snippets.validation.memory_your_model`.
"""

import torch
from torch import nn
from torch._subclasses import FakeTensorMode

from snippets.validation.memory import record, report, saved, table


# --8<-- [start:count]
def main() -> None:
    with FakeTensorMode():  # what is made from here on has a shape and no data
        layers = (nn.TransformerEncoderLayer(1024, 16, 4096, dropout=0.0, batch_first=True) for _ in range(4))
        model = nn.Sequential(*layers)
        optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
        x = torch.zeros(8, 1024, 1024)

        def step() -> None:
            model(x).square().mean().backward()
            optimizer.step()
            optimizer.zero_grad()

        step()  # the first step makes the optimizer's state
        print(report(record(step, model, optimizer), most=8))
        print()
        print(table(saved(model, lambda: model(x)), most=6))


if __name__ == "__main__":
    main()
# --8<-- [end:count]
