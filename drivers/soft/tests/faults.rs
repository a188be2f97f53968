//! Faults to order do what they say, and nothing when they are not set.

mod common;

use common::*;
use nvpoll_mem::Registers;
use nvpoll_soft::{FaultAction, FaultRule, SoftOptions};
use nvpoll_spec::{
    AdminOpcode, Cns, CompletionEntry, NvmOpcode, ShutdownStatus, Status, SubmissionEntry, reg,
};
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{Duration, Instant};

fn both(test: impl Fn(SoftOptions)) {
    test(stepped("size=8M"));
    test("size=8M".parse().unwrap());
}

fn flush(cid: u16) -> SubmissionEntry {
    SubmissionEntry { cid, ..SubmissionEntry::io(NvmOpcode::FLUSH, 1, 0, 0) }
}

/// Runs ten flushes with `rule` and returns their completions, as many as there are.
fn ten(options: SoftOptions, rule: FaultRule, count: usize) -> Vec<CompletionEntry> {
    let mut host = Host::new(options);
    let mut pair = host.pair(1, 32);
    host.controller.faults().add(rule);
    for cid in 0..10 {
        pair.push(flush(cid));
    }
    pair.ring();
    let completions = (0..count).map(|_| pair.wait()).collect();
    std::thread::sleep(Duration::from_millis(2));
    assert!(pair.take().is_none(), "more than {count} completions");
    completions
}

fn cids(completions: &[CompletionEntry]) -> Vec<u16> {
    completions.iter().map(|completion| completion.cid).collect()
}

fn third(action: FaultAction) -> FaultRule {
    FaultRule::all(action).on_queue(1).only_nth(3)
}

#[test]
fn a_command_fails_with_the_status_that_was_ordered() {
    both(|options| {
        let status = Status::new(2, 0x81);
        let completions = ten(options, third(FaultAction::Fail(status)), 10);
        for (cid, completion) in completions.iter().enumerate() {
            let expected = if cid == 2 { status } else { Status::SUCCESS };
            assert_eq!(completion.status(), expected, "{cid}");
        }
    });
}

#[test]
fn a_failed_command_moves_no_data() {
    let mut host = Host::new(stepped("size=8M"));
    let mut pair = host.pair(1, 8);
    let buffer = host.buffer(4096);
    let fail = FaultAction::Fail(Status::UNRECOVERED_READ);
    let rule = FaultRule::all(fail).for_opcode(NvmOpcode::READ.0).for_blocks(100..=100);
    host.controller.faults().add(rule);
    buffer.write(0, &[7; 4096]);
    assert_ok(pair.run(io(NvmOpcode::WRITE, 96, 8, buffer.iova(0), 0)));
    let page = buffer.iova(0);
    let failed = pair.run(io(NvmOpcode::READ, 93, 8, page, 0));
    assert_eq!(failed.status(), Status::UNRECOVERED_READ, "blocks 93 to 100");
    assert_ok(pair.run(io(NvmOpcode::READ, 92, 8, page, 0)));
    assert_ok(pair.run(io(NvmOpcode::READ, 101, 8, page, 0)));
    buffer.write(0, &[9; 4096]);
    assert!(!pair.run(io(NvmOpcode::READ, 100, 1, page, 0)).status().is_success());
    assert_eq!(buffer.words()[0].load(Relaxed), 0x0909_0909_0909_0909);
    host.controller.faults().clear();
    assert_ok(pair.run(io(NvmOpcode::READ, 100, 1, page, 0)));
    assert_eq!(buffer.words()[0].load(Relaxed), 0x0707_0707_0707_0707);
    assert_eq!(host.controller.counters().failed, 2);
}

#[test]
fn completions_are_dropped_doubled_and_changed() {
    both(|options| {
        let dropped = ten(options.clone(), third(FaultAction::Drop), 9);
        assert_eq!(cids(&dropped), [0, 1, 3, 4, 5, 6, 7, 8, 9]);
        let doubled = ten(options.clone(), third(FaultAction::Twice), 11);
        assert_eq!(cids(&doubled), [0, 1, 2, 2, 3, 4, 5, 6, 7, 8, 9]);
        let renamed = ten(options.clone(), third(FaultAction::WrongCid(0xabcd)), 10);
        assert_eq!(cids(&renamed)[..4], [0, 1, 0xabcd, 3]);
        let moved = ten(options.clone(), third(FaultAction::WrongSqId(9)), 10);
        assert_eq!((moved[2].sq_id, moved[3].sq_id), (9, 1));
        let headed = ten(options, third(FaultAction::WrongSqHead(77)), 10);
        assert_eq!((headed[2].sq_head, headed[2].cid), (77, 2));
    });
}

/// The slot was written and the device went on, but the host sees nothing of it.
#[test]
fn a_stale_phase_hides_the_completion() {
    let mut host = Host::new(stepped("size=8M"));
    let mut pair = host.pair(1, 32);
    host.controller.faults().add(third(FaultAction::StalePhase));
    for cid in 0..10 {
        pair.push(flush(cid));
    }
    pair.ring();
    assert_eq!((pair.wait().cid, pair.wait().cid), (0, 1));
    assert!(pair.take().is_none());
    pair.cq.advance();
    assert_eq!(pair.wait().cid, 3, "the next slot is as it should be");
}

#[test]
fn completions_come_out_of_order() {
    both(|options| {
        let deferred = ten(options.clone(), third(FaultAction::Defer(4)), 10);
        assert_eq!(cids(&deferred), [0, 1, 3, 4, 5, 6, 2, 7, 8, 9]);
    });
}

#[test]
fn held_completions_are_let_go() {
    for action in [FaultAction::Defer(1000), FaultAction::Delay(Duration::from_secs(1000))] {
        both(|options| {
            let mut host = Host::new(options);
            let mut pair = host.pair(1, 32);
            host.controller.faults().add(third(action));
            for cid in 0..5 {
                pair.push(flush(cid));
            }
            pair.ring();
            let first: Vec<_> = (0..4).map(|_| pair.wait()).collect();
            assert_eq!(cids(&first), [0, 1, 3, 4]);
            assert!(pair.take().is_none());
            host.controller.release_held();
            assert_eq!(pair.wait().cid, 2);
        });
    }
}

#[test]
fn a_delay_is_kept_by_a_threaded_device() {
    let mut host = Host::new("size=8M".parse().unwrap());
    let mut pair = host.pair(1, 32);
    let delay = Duration::from_millis(30);
    host.controller.faults().add(third(FaultAction::Delay(delay)));
    let start = Instant::now();
    for cid in 0..5 {
        pair.push(flush(cid));
    }
    pair.ring();
    let completions: Vec<_> = (0..5).map(|_| pair.wait()).collect();
    assert_eq!(cids(&completions), [0, 1, 3, 4, 2]);
    assert!(start.elapsed() >= delay, "{:?}", start.elapsed());
}

#[test]
fn admin_commands_can_be_hit_as_well() {
    let mut host = Host::new(stepped(""));
    let fail = FaultAction::Fail(Status::INTERNAL);
    host.controller.faults().add(FaultRule::all(fail).for_opcode(AdminOpcode::IDENTIFY.0));
    assert_eq!(host.identify(Cns::CONTROLLER, 0), Err(Status::INTERNAL));
    host.pair(1, 8);
    host.controller.faults().clear();
    assert!(host.identify(Cns::CONTROLLER, 0).is_ok());
}

#[test]
fn a_device_that_vanished_reads_as_ones_and_does_nothing() {
    both(|options| {
        let mut host = Host::new(options);
        let mut pair = host.pair(1, 8);
        host.controller.faults().vanish();
        for offset in [reg::CAP, reg::VS, reg::CC, reg::CSTS, reg::ASQ, 0x3c] {
            assert_eq!(host.controller.read32(offset).unwrap(), u32::MAX, "{offset:#x}");
        }
        assert_eq!(host.controller.read64(reg::CAP).unwrap(), u64::MAX);
        host.controller.write32(reg::CC, 0).unwrap();
        pair.push(flush(0));
        pair.ring();
        std::thread::sleep(Duration::from_millis(2));
        assert!(pair.take().is_none());
        assert_eq!(host.controller.counters().resets, 0);
    });
}

#[test]
fn readiness_fatality_and_shutdown_hang_to_order() {
    both(|options| {
        let controller = nvpoll_soft::SoftController::start(options).unwrap();
        let faults = controller.faults();
        faults.set_never_ready(true);
        controller.write32(reg::AQA, 3 | 3 << 16).unwrap();
        controller.write32(reg::CC, enabled().into_bits()).unwrap();
        std::thread::sleep(Duration::from_millis(2));
        assert!((0..10).all(|_| !status(&controller).ready()));
        controller.write32(reg::CC, 0).unwrap();
        wait_status(&controller, |_| controller.counters().resets == 1);
        faults.set_never_ready(false);

        let host = Host::over(Arc::clone(&controller), enabled(), 8);
        faults.set_fatal();
        assert!(status(&controller).fatal(), "at once");
        assert!(status(&controller).ready());
        host.reset();
        assert!(!status(&controller).fatal(), "a reset takes it away");

        let mut host = Host::over(Arc::clone(&controller), enabled(), 8);
        assert!(host.identify(Cns::CONTROLLER, 0).is_ok());
        faults.hang_shutdown(true);
        controller.write32(reg::CC, enabled().with_shutdown(1).into_bits()).unwrap();
        wait_status(&controller, |csts| csts.shutdown() == ShutdownStatus::Occurring);
        std::thread::sleep(Duration::from_millis(2));
        assert_eq!(status(&controller).shutdown(), ShutdownStatus::Occurring);
        faults.hang_shutdown(false);
        wait_status(&controller, |csts| csts.shutdown() == ShutdownStatus::Complete);

        faults.set_never_disabled(true);
        controller.write32(reg::CC, 0).unwrap();
        wait_status(&controller, |_| controller.counters().resets == 3);
        assert!(status(&controller).ready());
    });
}

#[test]
fn a_device_that_hangs_answers_registers_alone() {
    both(|options| {
        let mut host = Host::new(options);
        let mut pair = host.pair(1, 8);
        host.controller.faults().set_hung(true);
        pair.push(flush(0));
        pair.ring();
        std::thread::sleep(Duration::from_millis(2));
        assert!(pair.take().is_none());
        assert!(status(&host.controller).ready());
        host.controller.faults().set_hung(false);
        pair.ring();
        assert_eq!(pair.wait().cid, 0);
    });
}
