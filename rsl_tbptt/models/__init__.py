"""Models with memory: the interface that replay needs, and this package's models for rsl_rl 5.

``protocol.py`` defines how a model is replayed window by window.
"""

from typing import TYPE_CHECKING, Any

from rsl_tbptt.compat import MODELS_ERA, require_era, rsl_rl_era

if TYPE_CHECKING or rsl_rl_era() == MODELS_ERA:
    from rsl_tbptt.models.cnn_rnn import CNNRNNModel
    from rsl_tbptt.models.recurrent import RecurrentModel

__all__ = ["CNNRNNModel", "RecurrentModel"]


def __getattr__(name: str) -> Any:
    """Refuse a model that is gone, or needs another rsl_rl: 3.1.2 can use the modules here only.

    Raises:
        AttributeError: If there is no such public name.
        ImportError: If the model is gone, or rsl_rl is 3.1.2.
    """
    if name == "SelectedTeachers":
        raise ImportError(
            "rsl_tbptt.models.SelectedTeachers is gone: name a controller of your own, which runs"
            " all teachers and selects by torch.where. See docs/howto/recipes.md#two-experts."
        )
    if name in __all__:
        require_era(MODELS_ERA, f"rsl_tbptt.models.{name}")
    raise AttributeError(f"module 'rsl_tbptt.models' has no attribute '{name}'")
