"""Workers that start as on Windows and macOS. Run `python -m snippets.start.your_machine`."""

# --8<-- [start:workers]
from torch.utils.data import DataLoader


def main() -> None:
    for batch in DataLoader(range(8), batch_size=4, num_workers=1, multiprocessing_context="spawn"):
        print(batch.tolist())


if __name__ == "__main__":  # each worker imports this file; without this line, each would start workers itself
    main()
# --8<-- [end:workers]
