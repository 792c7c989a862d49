"""A model whose workers may change: the user's own module, behind whatever exchanges its gradients at the moment."""

from __future__ import annotations

from typing import Any, Dict, Optional

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from moira.training.gradients import Gradients


class ElasticModule(nn.Module):
    """Looks like the module it wraps, also to those who save its state."""

    def __init__(self, module: nn.Module, options: Dict[str, Any]) -> None:
        super().__init__()
        self.module = module
        self._options = options
        # Not a submodule: it would show every parameter twice.
        object.__setattr__(self, "_parallel", None)

    def connect(self, gradients: Gradients, group: Optional[Any]) -> None:
        """From now on gradients are exchanged in this group; without one there is nobody to exchange them with."""
        parallel = None
        if group is not None:
            parallel = DistributedDataParallel(self.module, process_group=group, **self._options)
            parallel.register_comm_hook(group, gradients.exchange)
        object.__setattr__(self, "_parallel", parallel)

    def exchange_next(self, exchanges: bool) -> None:
        """Whether the coming backward pass is the last of its step."""
        if self._parallel is not None:
            self._parallel.require_backward_grad_sync = exchanges

    def forward(self, *inputs: Any, **named: Any) -> Any:
        """The module's own. What is evaluated rather than trained needs no other workers."""
        if self._parallel is not None and self.training and torch.is_grad_enabled():
            return self._parallel(*inputs, **named)
        return self.module(*inputs, **named)

    def state_dict(self, *arguments: Any, **named: Any) -> Any:
        """The module's own, so that what is saved can be loaded without Moira."""
        return self.module.state_dict(*arguments, **named)

    def load_state_dict(self, *arguments: Any, **named: Any) -> Any:
        """The module's own."""
        return self.module.load_state_dict(*arguments, **named)

    def __getattr__(self, name: str) -> Any:
        try:
            return super().__getattr__(name)
        except AttributeError:
            return getattr(super().__getattr__("module"), name)
