"""Where the configs of several offers are said to be from."""

from __future__ import annotations

from dataclasses import replace

from tests.contract.storage.databases import DEVICE, OTHER_DEVICE
from tirgemm.tuning.records.offer import Offer, joint_origin


def test_a_set_of_which_one_size_is_offered_by_another_device_is_of_that() -> None:
    own = Offer(DEVICE, (), same=False)
    other = Offer(OTHER_DEVICE, (), same=False, other_device=True)
    last = replace(own, device=DEVICE.with_(environment=(("tvm", "0.1"),)))
    assert joint_origin([own, last]) == last.origin
    for offers in ([own, other], [other, own], [own, other, own]):
        assert joint_origin(iter(offers)) == other.origin
