"""Models with memory: what a replay asks of one, and models of ours for rsl_rl 5.

``protocol.py`` says what a model shows to be replayed window by window.
"""

from typing import TYPE_CHECKING

from rsl_tbptt.compat import MODELS_ERA, rsl_rl_era

if TYPE_CHECKING or rsl_rl_era() == MODELS_ERA:
    from rsl_tbptt.models.cnn_rnn import CNNRNNModel
    from rsl_tbptt.models.recurrent import RecurrentModel
    from rsl_tbptt.models.teacher_group import SelectedTeachers

    __all__ = ["CNNRNNModel", "RecurrentModel", "SelectedTeachers"]
