//! The end of a controller: disabled, then unmapped, then closed, whatever happened before.

use crate::spy::{Event, Log};
use crate::support::*;
use nvpoll_nvme::limits::{READY_WAIT_MIN, SHUTDOWN_WAIT};
use nvpoll_nvme::{NvmeError, Options};
use nvpoll_soft::{FaultAction, FaultRule, SoftController};
use nvpoll_spec::{AdminOpcode, Status};
use std::time::Instant;

/// Whether the controller was disabled, and seen to be, before the first of the memory that it
/// knew was unmapped, and the function closed last.
#[track_caller]
pub fn assert_orderly(events: &[Event]) {
    let disabled = last_disable(events);
    let settled = events[disabled..]
        .iter()
        .position(|event| matches!(event, Event::Status(status) if !status.ready()))
        .unwrap_or_else(|| panic!("CSTS.RDY was not seen to fall: {events:?}"));
    let rest = &events[disabled + settled + 1..];
    let (last, unmaps) = rest.split_last().unwrap_or_else(|| panic!("{events:?}"));
    assert_eq!(*last, Event::Closed, "{events:?}");
    assert!(unmaps.len() >= 3, "the admin queues and their data: {events:?}");
    assert!(unmaps.iter().all(|event| matches!(event, Event::Unmap(_))), "{events:?}");
}

fn last_disable(events: &[Event]) -> usize {
    let disables = |event: &Event| matches!(event, Event::Configure(cc) if !cc.enable());
    events.iter().rposition(disables).unwrap_or_else(|| panic!("never disabled: {events:?}"))
}

fn notified(events: &[Event]) -> bool {
    events.iter().any(|event| matches!(event, Event::Configure(cc) if cc.shutdown() != 0))
}

fn is_closed(log: &Log) -> bool {
    log.mapped().is_empty()
}

#[test]
fn an_orderly_end_notifies_disables_unmaps_and_closes() {
    let bench = Bench::new(options("soft:size=1M,stepped"));
    let mut pair = bench.pair(4, 1);
    assert_eq!(run(&mut pair, 0, FLUSH), Status::SUCCESS);
    drop(pair);
    let (soft, log) = bench.into_soft();
    let events = log.take_events();
    assert!(notified(&events[..last_disable(&events)]));
    assert_orderly(&events);
    assert!(is_closed(&log));
    assert_eq!(soft.dma_faults(), []);
}

#[test]
fn a_shutdown_that_hangs_is_given_up_and_the_device_disabled() {
    let bench = Bench::new(options("soft:size=1M,stepped,timeout=500ms"));
    bench.soft.faults().hang_shutdown(true);
    let start = Instant::now();
    let (soft, log) = bench.into_soft();
    let took = start.elapsed();
    assert!(took >= SHUTDOWN_WAIT && took < PATIENCE, "{took:?}");
    let events = log.take_events();
    assert!(notified(&events));
    assert_orderly(&events);
    assert!(is_closed(&log));
    assert_eq!(soft.dma_faults(), []);
}

/// Memory that the device may still reach is unmapped only when the function was closed.
#[test]
fn a_device_that_stays_enabled_keeps_its_memory_until_it_is_closed() {
    let bench = Bench::new(options("soft:size=1M,stepped,timeout=500ms"));
    let fail = FaultAction::Fail(Status::INTERNAL);
    bench.soft.faults().add(FaultRule::all(fail).for_opcode(AdminOpcode::DELETE_SQ.0));
    drop(bench.pair(4, 1));
    bench.soft.faults().set_never_disabled(true);
    let retired = bench.log.mapped().len();
    assert_eq!(retired, 3 + 3, "the admin queue's, and the pair's");
    bench.log.take_events();
    let (soft, log) = bench.into_soft();
    let events = log.take_events();
    let closed = events.iter().position(|event| *event == Event::Closed).unwrap();
    let unmaps =
        |events: &[Event]| events.iter().filter(|event| matches!(event, Event::Unmap(_))).count();
    assert_eq!((unmaps(&events[..closed]), unmaps(&events[closed..])), (0, retired), "{events:?}");
    assert!(is_closed(&log));

    // The next owner is told.
    match open(&soft, Options::default()).0 {
        Err(NvmeError::Timeout { what, waited, csts, .. }) => {
            assert!(what.contains("after disabling") && csts & 1 == 1, "{what}, {csts:#x}");
            assert!(waited >= READY_WAIT_MIN && waited < PATIENCE, "{waited:?}");
        }
        other => panic!("{other:?}"),
    }
}

/// Each step of opening that can fail after the device was told of memory.
#[test]
fn an_open_that_fails_ends_like_any_other() {
    for opcode in [AdminOpcode::IDENTIFY, AdminOpcode::SET_FEATURES] {
        let soft = SoftController::start(options("soft:size=1M,stepped")).unwrap();
        let fail = FaultAction::Fail(Status::INTERNAL);
        soft.faults().add(FaultRule::all(fail).for_opcode(opcode.0));
        let (controller, log) = open(&soft, Options::default());
        match controller {
            Err(NvmeError::Command { status, .. }) => assert_eq!(status, Status::INTERNAL),
            other => panic!("{other:?}"),
        }
        let events = log.take_events();
        assert!(notified(&events));
        assert_orderly(&events);
        assert!(is_closed(&log));
    }
}
