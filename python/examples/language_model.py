"""A small language model made elastic and adaptive: a transformer that learns the words of a made-up language.

    python examples/language_model.py                                              # on its own, as any script
    moira submit --workers 1..2 --batch 16..128 -- python examples/language_model.py    # under Moira

It takes about a minute on one core. Lines that are there for Moira end in `# Moira`.
"""

from __future__ import annotations

import argparse
import math

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset

import moira  # Moira

LETTERS, WORDS, LENGTH = 28, 200, 64


class Sentences(Dataset[Tensor]):
    """Words of a fixed vocabulary, in random order with a taste for some of them, letter by letter."""

    def __init__(self, count: int, seed: int) -> None:
        generator = torch.Generator().manual_seed(seed)
        vocabulary = torch.Generator().manual_seed(17)
        lengths = torch.randint(2, 8, (WORDS,), generator=vocabulary).tolist()
        words = [[*torch.randint(1, LETTERS, (length,), generator=vocabulary).tolist(), 0] for length in lengths]
        taste = 1.0 / torch.arange(1, WORDS + 1, dtype=torch.float)
        needed = count * LENGTH + LENGTH
        chosen = torch.multinomial(taste, needed // 3 + 1, replacement=True, generator=generator).tolist()
        text = [letter for word in chosen for letter in words[word]]
        self._text = torch.tensor(text[: count * LENGTH + 1])
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, index: int) -> Tensor:
        return self._text[index * LENGTH : (index + 1) * LENGTH + 1]


class Transformer(nn.Module):
    """Reads letters and guesses the next."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.letters = nn.Embedding(LETTERS, width)
        self.places = nn.Embedding(LENGTH, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.guess = nn.Linear(width, LETTERS)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(LENGTH), persistent=False)

    def forward(self, text: Tensor) -> Tensor:
        places = torch.arange(text.shape[1], device=text.device)
        inner = self.body(self.letters(text) + self.places(places), mask=self.mask, is_causal=True)
        guessed: Tensor = self.guess(inner)
        return guessed


def surprise(model: nn.Module, text: Tensor) -> Tensor:
    return functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())


def main() -> None:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--epochs", type=int, default=4)
    arguments.add_argument("--sentences", type=int, default=2000)
    arguments.add_argument("--width", type=int, default=64)
    arguments.add_argument("--layers", type=int, default=2)
    arguments.add_argument("--seed", type=int, default=0)
    chosen = arguments.parse_args()

    moira.init(seed=chosen.seed)  # Moira
    torch.manual_seed(chosen.seed)
    model: nn.Module = Transformer(chosen.width, chosen.layers)
    optimizer: torch.optim.Optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    loader = DataLoader(Sentences(chosen.sentences, seed=1), batch_size=16, shuffle=True)
    model, optimizer, loader = moira.wrap(model, optimizer, loader)  # Moira
    unseen = torch.stack([Sentences(100, seed=2)[index] for index in range(100)])
    for epoch in moira.epochs(chosen.epochs):  # Moira: was range(chosen.epochs)
        for text in loader:
            optimizer.zero_grad()
            loss = surprise(model, text)
            loss.backward()
            optimizer.step()
            moira.report(loss=loss)  # Moira
        model.eval()
        with torch.no_grad():
            bits = float(surprise(model, unseen)) / math.log(2)
        model.train()
        print(f"epoch {epoch}: {bits:.3f} bits a letter", flush=True)


if __name__ == "__main__":
    main()
