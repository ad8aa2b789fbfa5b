"""The one masker: replace secrets in texts, commands and environments before they are written or shown.

In: a text, a command's words, or an environment. Out: the same with each secret replaced by `MASK`. Secrets are
recognised by the name that they follow (`--api-key X`, `HF_TOKEN=X`, `X-Api-Key: X`), by their form (`hf_...`, a URL's
password, a signed query), or by value: `Masker` also knows the secrets of the environment and the command that it was
made from, wherever they stand. What is run is never masked. This room also runs in the user's process, so it uses the
standard library only, and no function raises for a text of any content.
"""

from flatout.secrets.command import masked_command
from flatout.secrets.masker import Masker, masked_environment
from flatout.secrets.names import names_a_secret
from flatout.secrets.private import mask_file, open_private, write_private
from flatout.secrets.shapes import MASK
from flatout.secrets.text import masked_text

__all__ = [
    "MASK",
    "Masker",
    "mask_file",
    "masked_command",
    "masked_environment",
    "masked_text",
    "names_a_secret",
    "open_private",
    "write_private",
]
