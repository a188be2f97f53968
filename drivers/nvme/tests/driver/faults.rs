//! A controller that errs: every wait ends, every error is told as what it is, and nothing that
//! the device may still reach goes away.

use crate::order::assert_orderly;
use crate::spy::Event;
use crate::support::*;
use nvpoll_nvme::{NvmeError, ProtocolError};
use nvpoll_soft::{FaultAction, FaultRule};
use nvpoll_spec::{AdminOpcode, FeatureId, NvmOpcode, Status};
use std::sync::Arc;
use std::time::Duration;

/// The stepped device keeps these completions until they are released.
const HOLD: FaultAction = FaultAction::Delay(Duration::ZERO);

fn on_log(action: FaultAction) -> FaultRule {
    FaultRule::all(action).for_opcode(AdminOpcode::GET_LOG_PAGE.0).only_nth(1)
}

/// What is left of a bench after an admin command went astray: nothing is sent any more, and the
/// end is an orderly one.
fn assert_dead_but_orderly(bench: Bench) {
    match bench.controller.smart() {
        Err(NvmeError::Limit { reason, .. }) => {
            assert!(reason.contains("was not sent"), "{reason}")
        }
        other => panic!("{other:?}"),
    }
    assert!(matches!(bench.try_pair(1, 1), Err(NvmeError::Limit { .. })));
    assert!(matches!(bench.controller.namespace(1), Err(NvmeError::Limit { .. })));
    let (soft, log) = bench.into_soft();
    assert_orderly(&log.take_events());
    assert_eq!((soft.dma_faults(), log.mapped()), (vec![], vec![]));
}

#[test]
fn an_admin_command_that_never_completes_is_given_up() {
    for action in [FaultAction::Drop, FaultAction::StalePhase] {
        let bench = Bench::with(options("soft:size=1M,stepped"), impatient());
        bench.soft.faults().add(on_log(action));
        match bench.controller.smart() {
            Err(NvmeError::Timeout { what, waited, csts, .. }) => {
                assert_eq!((what, csts), ("completion of an admin command", 1));
                assert!(waited >= impatient().admin_wait && waited < PATIENCE);
            }
            other => panic!("{other:?}"),
        }
        assert_dead_but_orderly(bench);
    }
}

#[test]
fn a_device_that_fetches_no_more_is_given_up() {
    let bench = Bench::with(options("soft:size=1M,stepped"), impatient());
    let mut pair = bench.pair(2, 1);
    bench.soft.faults().set_hung(true);
    pair.push(0, write(0, 1)).unwrap();
    pair.kick();
    assert_eq!(reap(&mut pair), []);
    assert!(pair.check().is_ok(), "its registers answer");
    drop(pair);
    assert_dead_but_orderly(bench);
}

/// The completion and the data page come when nobody waits any more.
#[test]
fn a_late_admin_completion_does_no_harm() {
    let bench = Bench::with(options("soft:size=1M,stepped"), impatient());
    bench.soft.faults().add(on_log(HOLD));
    assert!(matches!(bench.controller.smart(), Err(NvmeError::Timeout { .. })));
    bench.soft.release_held();
    assert_dead_but_orderly(bench);
}

#[test]
fn an_admin_completion_that_cannot_be_is_a_protocol_error() {
    let protocol = |bench: &Bench| match bench.controller.smart() {
        Err(NvmeError::Protocol { source, .. }) => source,
        other => panic!("{other:?}"),
    };
    let bench = Bench::new(options("soft:size=1M,stepped"));
    bench.soft.faults().add(on_log(FaultAction::WrongCid(0x1234)));
    assert_eq!(protocol(&bench), ProtocolError::UnknownCid { qid: 0, cid: 0x1234 });
    assert_dead_but_orderly(bench);

    let bench = Bench::new(options("soft:size=1M,stepped"));
    bench.soft.faults().add(on_log(FaultAction::WrongSqId(3)));
    assert_eq!(protocol(&bench), ProtocolError::WrongQueue { qid: 0, sq_id: 3 });
    assert_dead_but_orderly(bench);

    // The second of two completions is met by the next command.
    let bench = Bench::new(options("soft:size=1M,stepped"));
    bench.soft.faults().add(on_log(FaultAction::Twice));
    assert!(bench.controller.smart().is_ok());
    assert!(matches!(protocol(&bench), ProtocolError::UnknownCid { qid: 0, .. }));
    assert_dead_but_orderly(bench);
}

#[test]
fn an_admin_commands_status_is_told_and_changes_nothing() {
    let bench = Bench::new(options("soft:size=1M,stepped"));
    bench.soft.faults().add(on_log(FaultAction::Fail(Status::new(1, 0x09))));
    let error = bench.controller.smart().unwrap_err().to_string();
    assert!(error.contains("Get Log Page (SMART) failed: Invalid Log Page"), "{error}");
    assert!(bench.controller.smart().is_ok());
    assert_eq!(bench.controller.feature(FeatureId(0xfe)).unwrap(), None);
    assert_eq!(bench.controller.feature(FeatureId::VOLATILE_WRITE_CACHE).unwrap(), Some(1));
    assert!(matches!(bench.controller.namespace(2), Err(NvmeError::Limit { .. })));
    assert_eq!(bench.controller.active_namespaces().unwrap(), [1]);
}

/// Breaks the device when it is rung for an admin command, and asks for one.
fn break_in_admin(
    bench: &Bench,
    breaks: impl Fn(&nvpoll_soft::SoftController) + Send + 'static,
) -> NvmeError {
    let soft = Arc::clone(&bench.soft);
    bench.log.hook(move |event| {
        if event == Event::Tail(0) {
            breaks(&soft);
        }
    });
    let error = bench.controller.smart().unwrap_err();
    bench.log.unhook();
    error
}

#[test]
fn a_device_that_goes_in_an_admin_command_is_said_to_be_gone() {
    let bench = Bench::new(options("soft:size=1M,stepped"));
    let pair = bench.pair(2, 1);
    let error = break_in_admin(&bench, |soft| soft.faults().vanish());
    assert!(matches!(error, NvmeError::Gone { .. }), "{error:?}");
    drop(pair);
    // Not disabled, because nothing answers; so its memory goes after the function.
    let (soft, log) = bench.into_soft();
    let events = log.take_events();
    let closed = events.iter().position(|event| *event == Event::Closed).unwrap();
    assert!(!events[..closed].iter().any(|event| matches!(event, Event::Unmap(_))), "{events:?}");
    assert_eq!((soft.dma_faults(), log.mapped()), (vec![], vec![]));
}

#[test]
fn a_fatal_status_in_an_admin_command_is_told() {
    let bench = Bench::new(options("soft:size=1M,stepped"));
    let error = break_in_admin(&bench, |soft| soft.faults().set_fatal());
    assert!(matches!(error, NvmeError::Fatal { .. }), "{error:?}");
    assert_dead_but_orderly(bench);
}

#[test]
fn what_happens_to_the_device_in_io_is_found_by_a_check() {
    for vanish in [true, false] {
        let bench = Bench::new(options("soft:size=1M,stepped"));
        let mut pair = bench.pair(2, 1);
        pair.push(0, write(0, 1)).unwrap();
        assert!(pair.check().is_ok());
        if vanish {
            bench.soft.faults().vanish();
        } else {
            bench.soft.faults().set_fatal();
        }
        pair.kick();
        assert_eq!(reap(&mut pair), []);
        match pair.check() {
            Err(NvmeError::Gone { what: "I/O", .. }) => assert!(vanish),
            Err(NvmeError::Fatal { what: "I/O", .. }) => assert!(!vanish),
            other => panic!("{other:?}"),
        }
        drop(pair);
        let (soft, log) = bench.into_soft();
        assert_eq!((soft.dma_faults(), log.mapped()), (vec![], vec![]));
    }
}

fn protocol_error(pair: &mut Pair) -> ProtocolError {
    pair.reap(&mut |tag, _| panic!("tag {tag} is reported")).unwrap_err()
}

#[test]
fn a_doubled_completion_fails_the_run() {
    for io_blocks in [1, 40] {
        let bench = Bench::new(options("soft:size=1M,mdts=8k,stepped"));
        let mut pair = bench.pair(4, io_blocks);
        let twice = FaultAction::Twice;
        bench.soft.faults().add(FaultRule::all(twice).on_queue(1).only_nth(1));
        pair.push(2, read(0, io_blocks)).unwrap();
        pair.kick();
        let mut reported = 0;
        let error = pair.reap(&mut |_, _| reported += 1).unwrap_err();
        let cid = bench.log.take_commands(1)[0].cid;
        assert_eq!(error, ProtocolError::UnknownCid { qid: 1, cid });
        assert!(reported <= 1);
        let text = error.to_string();
        assert!(text.contains("queue 1") && text.contains("void"), "{text}");
    }
}

/// The completion of a command that completed before, of the same slot: its generation tells.
#[test]
fn a_late_completion_fails_the_run() {
    let bench = Bench::new(options("soft:size=1M,stepped"));
    let mut pair = bench.pair(4, 1);
    assert_eq!(run(&mut pair, 2, read(0, 1)), Status::SUCCESS);
    let old = bench.log.take_commands(1)[0].cid;
    bench.soft.faults().add(FaultRule::all(FaultAction::WrongCid(old)).on_queue(1));
    pair.push(2, read(0, 1)).unwrap();
    pair.kick();
    assert_ne!(bench.log.take_commands(1)[0].cid, old);
    assert_eq!(protocol_error(&mut pair), ProtocolError::UnknownCid { qid: 1, cid: old });
}

#[test]
fn a_completion_of_nothing_fails_the_run() {
    for cid in [4, 5, 7, 0x100, 0xfffe, 0xffff] {
        let bench = Bench::new(options("soft:size=1M,stepped"));
        let mut pair = bench.pair(4, 1);
        bench.soft.faults().add(FaultRule::all(FaultAction::WrongCid(cid)).on_queue(1));
        pair.push(0, read(0, 1)).unwrap();
        pair.kick();
        assert_eq!(protocol_error(&mut pair), ProtocolError::UnknownCid { qid: 1, cid });
    }
}

#[test]
fn a_completion_of_another_queue_fails_the_run() {
    let bench = Bench::new(options("soft:size=1M,stepped"));
    let mut pair = bench.pair(4, 1);
    bench.soft.faults().add(FaultRule::all(FaultAction::WrongSqId(2)).on_queue(1));
    pair.push(0, read(0, 1)).unwrap();
    pair.kick();
    assert_eq!(protocol_error(&mut pair), ProtocolError::WrongQueue { qid: 1, sq_id: 2 });
}

/// The phase tag alone says what is new; the submission queue's head is not relied upon.
#[test]
fn a_stale_phase_is_not_seen_and_a_wrong_head_not_minded() {
    let bench = Bench::new(options("soft:size=1M,mqes=4,stepped"));
    let mut pair = bench.pair(3, 1);
    bench.soft.faults().add(FaultRule::all(FaultAction::WrongSqHead(77)).on_queue(1));
    for round in 0..20 {
        assert_eq!(run(&mut pair, round % 3, read(0, 1)), Status::SUCCESS);
    }
    bench.soft.faults().clear();
    bench.soft.faults().add(FaultRule::all(FaultAction::StalePhase).on_queue(1).only_nth(1));
    pair.push(0, read(0, 1)).unwrap();
    pair.push(1, read(0, 1)).unwrap();
    pair.kick();
    assert_eq!(reap(&mut pair), [], "what stands behind a completion that cannot be seen waits");
    assert!(pair.check().is_ok());
}

#[test]
fn statuses_are_decoded() {
    let bench = Bench::new(options("soft:size=1M,stepped"));
    let mut pair = bench.pair(4, 1);
    for status in [
        Status::UNRECOVERED_READ,
        Status::LBA_OUT_OF_RANGE,
        Status(Status::WRITE_FAULT.0 | 1 << 14),
        Status::new(7, 0xff),
        Status(0x7fff),
    ] {
        let fail = FaultAction::Fail(status);
        bench.soft.faults().add(FaultRule::all(fail).on_queue(1).only_nth(1));
        assert_eq!(run(&mut pair, 1, read(9, 1)), status);
        assert_eq!(run(&mut pair, 1, read(9, 1)), Status::SUCCESS, "the tag is free again");
    }
}

#[test]
fn one_bad_piece_is_the_whole_ios_status_once() {
    let bench = Bench::new(options("soft:size=1M,mdts=8k,stepped"));
    let mut pair = bench.pair(2, 80);
    for bad in [0, 16, 79] {
        let fail = FaultAction::Fail(Status::UNRECOVERED_READ);
        bench.soft.faults().add(FaultRule::all(fail).for_blocks(bad..=bad));
        pair.push(0, read(0, 80)).unwrap();
        pair.push(1, read(80, 80)).unwrap();
        pair.kick();
        let expected = [(0, Status::UNRECOVERED_READ), (1, Status::SUCCESS)];
        assert_eq!(reap(&mut pair), expected, "block {bad}");
        bench.soft.faults().clear();
        assert_eq!(run(&mut pair, 0, read(0, 80)), Status::SUCCESS, "it is not held against it");
    }
    // Of several errors, the first that came.
    for (block, status) in [(40, Status::WRITE_FAULT), (70, Status::INTERNAL)] {
        let rule = FaultRule::all(FaultAction::Fail(status)).for_blocks(block..=block);
        bench.soft.faults().add(rule.for_opcode(NvmOpcode::WRITE.0));
    }
    assert_eq!(run(&mut pair, 0, write(0, 80)), Status::WRITE_FAULT);
}

/// A creation that is not answered may have been carried out: the rings stay.
#[test]
fn a_creation_that_is_not_answered_keeps_its_rings() {
    for opcode in [AdminOpcode::CREATE_CQ, AdminOpcode::CREATE_SQ] {
        let bench = Bench::with(options("soft:size=1M,stepped"), impatient());
        let before = bench.log.mapped().len();
        let drop = FaultAction::Drop;
        bench.soft.faults().add(FaultRule::all(drop).for_opcode(opcode.0));
        assert!(matches!(bench.try_pair(4, 1), Err(NvmeError::Timeout { .. })));
        assert_eq!(bench.log.mapped().len(), before + 2, "{opcode}");
        assert_dead_but_orderly(bench);
    }
}
