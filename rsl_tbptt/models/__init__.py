"""Models with memory: the interface that replay needs, and this package's models for rsl_rl 5.

``protocol.py`` defines how a model is replayed window by window.
"""

from typing import TYPE_CHECKING

from rsl_tbptt.compat import MODELS_ERA, rsl_rl_era

if TYPE_CHECKING or rsl_rl_era() == MODELS_ERA:
    from rsl_tbptt.models.cnn_rnn import CNNRNNModel
    from rsl_tbptt.models.recurrent import RecurrentModel
    from rsl_tbptt.models.teacher_group import SelectedTeachers

    __all__ = ["CNNRNNModel", "RecurrentModel", "SelectedTeachers"]
