"""A model whose workers may change: the user's own module, behind whatever exchanges its gradients at the moment."""

from __future__ import annotations

from inspect import signature
from typing import Any, Dict, List, Optional, Tuple

import torch
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from moira.training.gradients import Gradients

#: What DistributedDataParallel calls its exchange of buffers in the forward pass; older versions have the second name.
_SYNCS_BUFFERS = ("forward_sync_buffers", "broadcast_buffers")
_IN_FORWARD = next(name for name in _SYNCS_BUFFERS if name in signature(DistributedDataParallel).parameters)


class ElasticModule(nn.Module):
    """Looks like the module it wraps, also to those who save its state."""

    def __init__(self, module: nn.Module, options: Dict[str, Any]) -> None:
        super().__init__()
        self.module = module
        self._options = options
        #: Where buffers are that outlast a step. They may be replaced, so only their names are known.
        self._lasting: List[Tuple[nn.Module, str]] = []
        # Not a submodule: it would show every parameter twice.
        object.__setattr__(self, "_parallel", None)

    def connect(self, gradients: Gradients, group: Optional[Any]) -> None:
        """From now on gradients are exchanged in this group; without one there is nobody to exchange them with."""
        parallel = None
        self._lasting = []
        if group is not None:
            options = dict(self._options)
            # Who has said how buffers are to be treated is not contradicted. By default every one would be exchanged
            # within every forward pass, and that would be taken for computing.
            if not any(name in options for name in _SYNCS_BUFFERS):
                options[_IN_FORWARD] = False
                self._lasting = _saved_buffers(self.module)
            parallel = DistributedDataParallel(self.module, process_group=group, **options)
            parallel.register_comm_hook(group, gradients.exchange)
        object.__setattr__(self, "_parallel", parallel)

    def lasting_buffers(self) -> List[Tensor]:
        """What the module learns beside its parameters, such as running means, where others have to be told."""
        return [getattr(owner, name) for owner, name in self._lasting]

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


def _saved_buffers(module: nn.Module) -> List[Tuple[nn.Module, str]]:
    """What a module does not save, such as a mask, it has made itself, and so has every other worker."""
    saved = set(module.state_dict())
    return [
        (owner, name)
        for prefix, owner in module.named_modules()
        for name, _ in owner.named_buffers(recurse=False)
        if f"{prefix}.{name}".lstrip(".") in saved
    ]
