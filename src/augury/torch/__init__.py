"""For those who keep `torch.utils.data.DataLoader`: the same cache as a drop-in Dataset, the same orders as a Sampler,
and the weighted sampler for several ranks that torch lacks.

    dataset = augury.torch.CachedDataset("/data/train", ram="8GB", transform=decode)
    sampler = augury.torch.Sampler(dataset, seed=0)
    loader = torch.utils.data.DataLoader(dataset, batch_size=256, sampler=sampler, num_workers=4)

The only part that imports torch when it is imported. `augury.Loader` needs none of this.
"""

from augury.torch.dataset import CachedDataset
from augury.torch.embeddings import Captured, capture_embeddings
from augury.torch.losses import per_sample_cross_entropy
from augury.torch.samplers import Sampler, WeightedSampler

__all__ = [
    "CachedDataset",
    "Captured",
    "Sampler",
    "WeightedSampler",
    "capture_embeddings",
    "per_sample_cross_entropy",
]
