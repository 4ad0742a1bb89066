"""What a command may do to files. It lives in `exeat.file_policy`, which loads faster than this package."""

from exeat.file_policy import DEFAULT_LAYER_BYTES, VIEW, FilePolicy, FilesMode

__all__ = ["DEFAULT_LAYER_BYTES", "VIEW", "FilePolicy", "FilesMode"]
