"""Losses over classes. Programs compute them by the bodies of their schemas."""

from __future__ import annotations

from graphopt.model.operators.gradients import losses as gradients
from graphopt.model.operators.record import Operator

OPERATORS = (
    Operator(name="NegativeLogLikelihoodLoss", gradient=gradients.negative_log_likelihood),
    Operator(name="SoftmaxCrossEntropyLoss", gradient=gradients.softmax_cross_entropy),
)
