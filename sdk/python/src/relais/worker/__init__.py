"""The worker's side: take tasks of one service, do them, tell what became of them.

Tasks are done *at least once*: a worker that dies is replaced. A handler should do no harm when it is run twice.
"""

from .context import Context
from .crew import WorkerReport
from .http import Http
from .rabbitmq import RabbitMq
from .transport import Transport
from .verdict import Cancelled, Failure, TryAgain
from .worker import Worker

__all__ = ["Cancelled", "Context", "Failure", "Http", "RabbitMq", "Transport", "TryAgain", "Worker", "WorkerReport"]
