from __future__ import annotations

import msgspec

from monitor.codec import decode_output
from monitor.settings import Settings
from monitor.stream.routing import OUTPUT_LIMIT, Router, alert_group, decode_alert_group
from tests.alerting.incidents import incident


def test_an_incident_whose_severity_rose_is_told_to_the_group_it_leaves_too() -> None:
    router = Router(Settings())
    risen = msgspec.structs.replace(
        incident("i", severity="critical"), rose_from="warning", revision=2
    )
    entered, left = router.routes(risen)
    assert decode_alert_group(entered[1]) == alert_group(risen)
    assert decode_alert_group(left[1]) == (risen.service, risen.reason, risen.policy, "warning")
    assert decode_output(entered[2]) == decode_output(left[2]) == risen


def test_any_other_has_one_place() -> None:
    router = Router(Settings())
    made = incident("i")
    assert router.routes(made) == (router.route(made),)


def test_what_a_topic_would_refuse_goes_out_as_a_dead_letter_by_its_coordinates() -> None:
    router = Router(Settings())
    made = msgspec.structs.replace(incident("i"), summary="x" * (OUTPUT_LIMIT + 1))
    letter = router.too_large(made, router.routes(made))
    assert letter is not None
    assert letter.reason == "output_too_large"
    assert letter.trace_id == made.trace_id
    assert letter.source.topic == "monitor.fragments"
    assert letter.source.offset == made.provenance.causing_offset
    assert "x" * 10 not in letter.detail
    assert router.too_large(letter, router.routes(letter)) is None


def test_what_fits_goes_out_as_it_is() -> None:
    router = Router(Settings())
    made = incident("i")
    assert router.too_large(made, router.routes(made)) is None
