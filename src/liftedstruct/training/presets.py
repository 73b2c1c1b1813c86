"""Named sets of settings, each setting with its origin."""

from typing import Any

from liftedstruct.runtime.checks import pick

__all__ = ["FOR_LOSS", "FOR_TRUNK", "PRESETS", "preset_settings"]

# Where a setting is from: P the paper, C its authors' code (or their answers about it), M measured by us, each in
# its own preset. Everything that is not named here is as TrainConfig has it.

# What quick and best share. M: benchmarks/recipe.py, on classes held out of the training half of CUB-200-2011; nothing in it
# knows of birds. docs/recipe.md tells what mattered.
RECIPE: dict[str, Any] = {
    "trunk": "efficientnet_lite0",  # pretrained weights that pip brings, and quick on a CPU
    "dim": 512,  # what later papers print
    "pool": "both",  # M
    "normalize": True,  # M, with the temperature
    "dropout": 0.0,  # M
    "loss": "lifted_struct",
    "margin": 1.0,  # P
    "temperature": 0.05,  # M
    "optimizer": "adamw",
    "schedule": "cosine",
    "head": "pca",  # M
    "head_scale": 1.0,
    "freeze": 4,  # M: as good as 3, and less to compute
    "batch_norm": "frozen",
}
PRESETS: dict[str, dict[str, Any]] = {
    "paper": {
        "trunk": "googlenet",  # P; C: BVLC's weights, which --weights takes
        "dim": 512,  # what later papers print of this one; P compares 64, 128, 256 and 512
        "normalize": False,  # C
        "dropout": 0.4,  # C
        "loss": "lifted_struct",  # P
        "margin": 1.0,  # P
        "batches": "pairs",  # P, C: 32 positive and 32 negative pairs; with the triplet loss pass triplets
        "batch_size": 128,  # P; 120 for triplets
        "steps": 20_000,  # P; C: 40,000 on CUB
        "crop": 227,  # P
        "mirror": True,  # P
        "optimizer": "sgd",  # P
        "lr": 1e-4,  # C: on Cars and Online Products; 1e-6 on CUB
        "momentum": 0.9,  # C
        "weight_decay": 2e-4,  # C, not on biases
        "head_lr": 10.0,  # P
        "head_bias_lr": 20.0,  # C
        "bias_lr": 2.0,  # C
        "schedule": "constant",  # C
        "warmup": 0,  # C
        "head": "uniform",  # C
        "head_scale": 1.0,  # C
        "freeze": 0,  # P
        "clip": 0.0,  # C
    },
    "quick": {  # for some minutes on two cores
        **RECIPE,
        "steps": 320,
        "crop": 224,  # what the trunk was trained with
        "lr": 2e-4,  # 1e-4 was 0.7 points better on birds, and 4.0 worse on rendered products in 80 steps
        "head_lr": 1.0,  # M
        "head_bias_lr": 1.0,  # as the weight
        "bias_lr": 1.0,  # as the weights
    },
    "best": {
        **RECIPE,
        "train_dim": 512,  # a choice: one training serves every size, by its principal components
        "margin": 4.0,  # M: 0.2 to 0.9 points better than 1 in four pairs of trials; 0.2 on the sphere
        "images": 4,  # M
        "steps": 400,  # a choice: 25,600 images
        "crop": 288,  # M: a point better than 224, which the trunk was trained with
        "train_crop": 224,  # M: as good as 288 with the rate and the share below, in two thirds of the time
        "least_area": 0.3,  # M: 0.7 points better at this rate, at 224 px
        "lr": 1e-4,  # M: 85.9 with the share below, 85.6 without, 85.3 at 4e-5
        "start_share": 0.4,  # M: small and not sure; kept for a training that goes too far
    },
}

# What a preset changes for a loss that is not its own.
FOR_LOSS: dict[str, dict[str, dict[str, Any]]] = {
    "paper": {
        "triplet": {"batches": "triplets", "batch_size": 120},  # P
    },
    # M: of quick by five trials for each loss on rendered products, benchmarks/results/trials.txt; of best by four trials of
    # contrastive and five of triplet, benchmarks/results/recipe.txt. What all share (optimizer, pools, head, frozen stages,
    # rate) was found with the lifted loss. Triplets have 63 images: their steps are for as many images as the others see.
    "quick": {
        "contrastive": {"temperature": 1.0},
        "triplet": {"temperature": 1.0, "margin": 0.5, "steps": 325},
    },
    "best": {
        "contrastive": {"temperature": 1.0, "margin": 1.0, "lr": 4e-5},
        "triplet": {"temperature": 1.0, "margin": 0.5, "negative": "semi-hard", "steps": 406},
    },
}


# What a preset changes for a trunk that is not its own; of others there were no trials.
FOR_TRUNK: dict[str, dict[str, dict[str, Any]]] = {
    "best": {
        "googlenet": {"start_share": 0.0},  # as in its trials; a share of the start was not tried
    },
}
UNTRIED = {"best": ("crop", "train_crop", "start_share")}  # left out for other trunks


def preset_settings(name: str, loss: object = None, trunk: object = None) -> dict[str, Any]:
    """The settings of a preset, for its own loss and trunk or for others; whether there are such is checked elsewhere.

    >>> preset_settings("paper", "triplet")["batch_size"]
    120
    """
    settings = pick(PRESETS, name, "preset")
    if trunk not in (None, settings["trunk"], *FOR_TRUNK.get(name, {})):
        settings = {key: value for key, value in settings.items() if key not in UNTRIED.get(name, ())}
    return settings | FOR_TRUNK.get(name, {}).get(str(trunk), {}) | FOR_LOSS.get(name, {}).get(str(loss), {})
