"""Lifted structured loss in a Lightning module, on the features of own_loop.py, with balanced batches and exact Recall@1.

pip install lightning
python examples/lightning_loop.py
"""

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

import liftedstruct as ls
from liftedstruct.samplers import BalancedSampler

try:
    from lightning import LightningModule, Trainer, seed_everything
except ModuleNotFoundError:  # fall back to nn.Module, so that the steps can be called without Lightning
    LightningModule, Trainer = nn.Module, None


class LiftedModule(LightningModule):  # type: ignore[misc]
    """Module that trains with the lifted structured loss and validates with Recall@1 on **all** validation images."""

    def __init__(self, network: nn.Module, sampler: BalancedSampler, lr: float = 1e-2) -> None:
        super().__init__()
        self.network, self.sampler, self.lr = network, sampler, lr
        self.loss = ls.LiftedStructLoss(margin=1.0)
        self.seen: list[tuple[Tensor, Tensor]] = []

    def training_step(self, batch: list[Tensor], number: int) -> Tensor:
        X, y = batch
        value: Tensor = self.loss(self.network(X), y)
        self.log("loss", value.detach(), prog_bar=True)
        return value

    def validation_step(self, batch: list[Tensor], number: int) -> None:
        X, y = batch
        self.seen.append((self.network(X), y))

    def on_validation_epoch_end(self) -> None:
        embeddings, labels = (torch.cat(parts) for parts in zip(*self.seen, strict=True))
        self.seen.clear()
        self.log("recall@1", ls.precision_at_1(embeddings, labels), prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.network.parameters(), lr=self.lr)

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:  # the loader prefetches: save the steps used
        checkpoint["sampler"] = self.sampler.state_dict(step=self.global_step)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        self.sampler.load_state_dict(checkpoint["sampler"])


def make_data() -> tuple[LiftedModule, DataLoader[Any], DataLoader[Any]]:
    """Make 100 training and 100 validation classes; 16 directions separate classes, and 16 stronger ones are noise."""
    torch.manual_seed(0)
    y = torch.arange(200).repeat_interleave(8)
    what, how = torch.randn(200, 16)[y] + 0.3 * torch.randn(1600, 16), 3 * torch.randn(1600, 16)
    X = torch.cat((what, how), dim=1) @ torch.linalg.qr(torch.randn(64, 32))[0].T
    train, others = y < 100, y >= 100
    sampler = BalancedSampler(y[train], batch_size=128, samples_per_class=4, seed=0)
    module = LiftedModule(nn.Linear(64, 16), sampler)
    training = DataLoader(TensorDataset(X[train], y[train]), batch_sampler=sampler)  # type: ignore[arg-type]  # yields arrays
    return module, training, DataLoader(TensorDataset(X[others], y[others]), batch_size=256)


def main(steps: int = 300) -> float:
    if Trainer is None:
        raise SystemExit("examples/lightning_loop.py needs Lightning, which is not installed. Run: pip install lightning")
    seed_everything(0)
    module, training, validation = make_data()
    trainer = Trainer(
        max_steps=steps,
        check_val_every_n_epoch=20,
        use_distributed_sampler=False,  # keep the balanced batches; Lightning would reshuffle them
        logger=False,
        enable_checkpointing=False,
    )
    trainer.fit(module, training, validation)
    trainer.validate(module, validation, verbose=False)
    return float(trainer.callback_metrics["recall@1"])


if __name__ == "__main__":
    print(f"Recall@1 on unseen classes: {main():.1%}")
