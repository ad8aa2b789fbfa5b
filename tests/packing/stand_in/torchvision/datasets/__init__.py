from torchvision.datasets.folder import DatasetFolder, ImageFolder

__all__ = ["DatasetFolder", "ImageFolder"]
