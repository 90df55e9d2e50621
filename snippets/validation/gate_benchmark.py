"""What the gate times on both sides: `python gate.py benchmark.py --old ../base` calls `benchmark` in each of them."""

import torch

from snippets.validation.memory_remedies import Model  # in your own: your own code, which each side has in its folder


def benchmark() -> dict:
    """Prepare everything, and return the calls to time by name. Each gets a verdict of its own."""
    torch.manual_seed(0)
    device, width, rows = ("cuda", 1024, 16) if torch.cuda.is_available() else ("cpu", 64, 2)
    model = Model(layers=2, width=width, heads=4, vocabulary=1024).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    tokens = torch.randint(1024, (rows, 257), device=device)
    batch = tokens[:, :-1], tokens[:, 1:]

    def forward() -> None:
        with torch.no_grad():
            model(*batch)

    def training_step() -> None:
        model(*batch).backward()
        optimizer.step()
        optimizer.zero_grad()

    return {"forward": forward, "training step": training_step}


if __name__ == "__main__":  # to see that all of it runs; the gate calls benchmark() itself
    for name, call in benchmark().items():
        call()
        print(f"{name} runs")
