"""Lifted structured loss in a plain PyTorch training loop, on feature vectors of 100 training and 100 test classes.

The features have 16 directions that separate classes and 16 that are noise, three times as strong.

    python examples/own_loop.py
"""

import torch
from torch import nn

import liftedstruct as ls
from liftedstruct.samplers import BalancedSampler


def main(epochs: int = 100) -> tuple[float, float]:
    torch.manual_seed(0)
    y = torch.arange(200).repeat_interleave(8)
    what, how = torch.randn(200, 16)[y] + 0.3 * torch.randn(1600, 16), 3 * torch.randn(1600, 16)
    X = torch.cat((what, how), dim=1) @ torch.linalg.qr(torch.randn(64, 32))[0].T
    train, test = y < 100, y >= 100

    network = nn.Linear(64, 16)
    loss = ls.LiftedStructLoss(margin=1.0)
    sampler = BalancedSampler(y[train], batch_size=128, samples_per_class=4, seed=0)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-2)
    for epoch in range(epochs):
        for rows in sampler:
            optimizer.zero_grad()
            value = loss(network(X[train][rows]), y[train][rows])
            value.backward()
            optimizer.step()
        if epoch % 25 == 0:
            print(f"epoch {epoch}: loss {value.item():.2f}")

    with torch.no_grad():
        embeddings = network(X[test])
    print(ls.inspect_batch(embeddings, y[test]))
    return ls.precision_at_1(X[test], y[test]), ls.precision_at_1(embeddings, y[test])


if __name__ == "__main__":
    before, after = main()
    print(f"Recall@1 on unseen classes: features {before:.1%}, embedding {after:.1%}")
