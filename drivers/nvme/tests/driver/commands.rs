//! The rarer commands, on the soft controller: what each does, and what is refused before it is sent.

use crate::fake::{Character, Fake};
use crate::support::*;
use nvpoll_nvme::{Commands, Controller, FormatWish, NvmeError, Options, SecureErase};
use nvpoll_soft::{FaultAction, FaultRule};
use nvpoll_spec::{
    AdminOpcode, ApstEntry, AsyncEventType, FORCE_UNIT_ACCESS, FeatureId, LogId, NvmOpcode, Status,
    ascii_field,
};
use std::time::Duration;

const BLOCK: usize = 512;

fn bench() -> Bench {
    Bench::new(options("soft:size=1M,stepped"))
}

fn commands(bench: &Bench) -> Commands<SoftSpy> {
    Commands::new(&bench.controller, &bench.namespace, true).unwrap()
}

fn random(blocks: usize, seed: u64) -> Vec<u8> {
    let mut data = vec![0; blocks * BLOCK];
    Random(seed).fill(&mut data);
    data
}

fn read_back(commands: &mut Commands<SoftSpy>, lba: u64, blocks: usize) -> Vec<u8> {
    let mut data = vec![0xff; blocks * BLOCK];
    commands.read(lba, &mut data).unwrap();
    data
}

/// The reason of a command that was not sent.
#[track_caller]
fn refused<T: std::fmt::Debug>(result: Result<T, NvmeError>) -> String {
    match result {
        Err(NvmeError::Limit { reason, .. } | NvmeError::Unsupported { reason, .. }) => reason,
        other => panic!("{other:?}"),
    }
}

#[test]
fn each_command_does_what_it_says() {
    let bench = bench();
    let mut commands = commands(&bench);
    let data = random(16, 1);
    commands.write(10, &data, false).unwrap();
    assert_eq!(read_back(&mut commands, 10, 16), data);
    assert!(commands.compare(10, &data).unwrap());
    assert!(!commands.compare(11, &data).unwrap());
    commands.verify(0, 2048).unwrap();
    commands.copy(100, &[(12, 2), (10, 1)]).unwrap();
    assert_eq!(
        read_back(&mut commands, 100, 3),
        [&data[2 * BLOCK..4 * BLOCK], &data[..BLOCK]].concat()
    );
    commands.write_zeroes(11, 2, true).unwrap();
    commands.deallocate(&[(13, 1), (20, 4)]).unwrap();
    let expected: Vec<u8> = (0..16)
        .flat_map(|block| {
            let zeroed = (1..4).contains(&block) || (10..14).contains(&block);
            let was = &data[block * BLOCK..][..BLOCK];
            if zeroed { vec![0; BLOCK] } else { was.to_vec() }
        })
        .collect();
    assert_eq!(read_back(&mut commands, 10, 16), expected);
    commands.flush().unwrap();
    let counters = bench.soft.counters();
    assert_eq!((counters.compares, counters.verifies, counters.copies), (1, 1, 1));
    assert_eq!((counters.trims, counters.trimmed_bytes, counters.flushes), (1, 5 * 512, 1));
    assert_eq!(bench.soft.dma_faults(), vec![]);
}

#[test]
fn force_unit_access_is_in_the_entry() {
    let bench = bench();
    let mut commands = commands(&bench);
    bench.log.take_commands(1);
    for fua in [false, true] {
        commands.write(3, &random(1, 2), fua).unwrap();
        let entry = bench.log.take_commands(1)[0];
        assert_eq!(entry.cdw12 & FORCE_UNIT_ACCESS != 0, fua);
    }
}

#[test]
fn what_does_not_fit_is_not_sent() {
    let bench = bench();
    let mut commands = commands(&bench);
    bench.log.take_commands(1);
    let long = vec![0; (128 << 10) + BLOCK];
    for reason in [
        refused(commands.read(2048, &mut [0; BLOCK])),
        refused(commands.read(u64::MAX, &mut [0; BLOCK])),
        refused(commands.read(0, &mut [0; BLOCK - 1])),
        refused(commands.read(0, &mut [])),
        refused(commands.write(0, &long, false)),
        refused(commands.compare(0, &[0; 100])),
        refused(commands.verify(0, 0)),
        refused(commands.verify(0, 2049)),
        refused(commands.verify(0, 1 << 16 | 1)),
        refused(commands.write_zeroes(2047, 2, false)),
        refused(commands.deallocate(&[])),
        refused(commands.deallocate(&[(0, 1); 257])),
        refused(commands.deallocate(&[(0, 1), (2048, 1)])),
        refused(commands.copy(0, &[])),
        refused(commands.copy(2047, &[(0, 1), (1, 1)])),
        refused(commands.copy(0, &[(0, 1); 129])),
    ] {
        assert!(reason.contains("was not sent"), "{reason}");
    }
    assert_eq!(bench.log.take_commands(1), vec![]);
    commands.deallocate(&[(0, 1); 256]).unwrap();
}

#[test]
fn nothing_is_written_where_writing_was_not_asked_for() {
    let bench = bench();
    let mut commands = Commands::new(&bench.controller, &bench.namespace, false).unwrap();
    bench.log.take_commands(1);
    for reason in [
        refused(commands.write(0, &[1; BLOCK], false)),
        refused(commands.write_zeroes(0, 1, false)),
        refused(commands.deallocate(&[(0, 1)])),
        refused(commands.copy(0, &[(0, 1)])),
    ] {
        assert!(reason.contains("reading only"), "{reason}");
    }
    assert_eq!(bench.log.take_commands(1), vec![]);
    assert!(commands.compare(0, &[0; BLOCK]).unwrap());
}

/// The controller of `fake` offers nothing that is optional.
#[test]
fn what_is_not_offered_is_refused_by_name() {
    let controller = Controller::open(Fake::new(Character::default()), Options::default()).unwrap();
    let namespace = controller.namespace(1).unwrap();
    let mut commands = Commands::new(&controller, &namespace, true).unwrap();
    for (reason, says) in [
        (refused(commands.compare(0, &[0; BLOCK])), "no Compare command (ONCS bit 0"),
        (refused(commands.write_uncorrectable(0, 1)), "no Write Uncorrectable command (ONCS bit 1"),
        (refused(commands.deallocate(&[(0, 1)])), "no Dataset Management command (ONCS bit 2"),
        (refused(commands.write_zeroes(0, 1, false)), "no Write Zeroes command (ONCS bit 3"),
        (refused(commands.verify(0, 1)), "no Verify command (ONCS bit 7"),
        (refused(commands.copy(0, &[(0, 1)])), "no Copy command (ONCS bit 8"),
        (refused(controller.changed_namespaces()), "OAES bit 8"),
        (refused(controller.apst()), "APSTA bit 0"),
        (refused(controller.set_write_cache(true)), "no volatile write cache"),
        (refused(controller.set_power_state(1)), "no power state 1"),
    ] {
        assert!(reason.contains(says), "{reason}");
    }
}

#[test]
fn a_failure_is_the_controllers_own_status_and_a_silence_ends() {
    let bench = bench();
    let mut commands = commands(&bench);
    let fail = FaultAction::Fail(Status::UNRECOVERED_READ);
    bench.soft.faults().add(FaultRule::all(fail).for_opcode(NvmOpcode::VERIFY.0).only_nth(1));
    match commands.verify(5, 1) {
        Err(NvmeError::Command { command, status, .. }) => {
            assert_eq!((command.as_str(), status), ("Verify", Status::UNRECOVERED_READ));
        }
        other => panic!("{other:?}"),
    }
    commands.verify(5, 1).unwrap();
    let wrong = FaultAction::WrongCid(0x7777);
    bench.soft.faults().add(FaultRule::all(wrong).for_opcode(NvmOpcode::FLUSH.0).only_nth(1));
    assert!(matches!(commands.flush(), Err(NvmeError::Protocol { .. })));
    assert!(refused(commands.flush()).contains("an earlier command never completed"));
}

#[test]
fn an_outstanding_command_is_aborted() {
    let bench = bench();
    let mut pair = bench.pair(2, 1);
    // The stepped device keeps the completion until it is released.
    let hold = FaultAction::Delay(Duration::ZERO);
    bench.soft.faults().add(FaultRule::all(hold).for_opcode(NvmOpcode::READ.0).only_nth(1));
    assert!(pair.abort(0).unwrap(), "there is none to abort");
    pair.push(1, read(0, 1)).unwrap();
    pair.kick();
    assert_eq!(reap(&mut pair), []);
    assert!(pair.abort(1).unwrap());
    let (tag, status) = wait(&mut pair);
    assert_eq!((tag, status.code()), (1, Status::ABORTED.code()));
}

#[test]
fn features_are_set_and_read_back() {
    let bench = bench();
    let controller = &bench.controller;
    controller.set_write_cache(false).unwrap();
    assert_eq!(controller.feature(FeatureId::VOLATILE_WRITE_CACHE).unwrap(), Some(0));
    controller.set_power_state(2).unwrap();
    assert_eq!(controller.power_state().unwrap(), 2);
    assert!(refused(controller.set_power_state(3)).contains("the last is 2"));
    let mut apst = controller.apst().unwrap();
    assert!(!apst.enabled && apst.table.iter().all(|entry| entry.0 == 0));
    apst.enabled = true;
    (apst.table[0], apst.table[1]) = (ApstEntry::new(2, 100), ApstEntry::new(2, 50));
    controller.set_apst(&apst).unwrap();
    assert_eq!(controller.apst().unwrap(), apst);
    apst.table[0] = ApstEntry::new(1, 100);
    assert!(matches!(controller.set_apst(&apst), Err(NvmeError::Command { .. })));
}

#[test]
fn logs_tell_errors_and_firmware() {
    let bench = bench();
    let mut pair = bench.pair(1, 1);
    assert!(bench.controller.error_log().unwrap().is_empty());
    let fail = FaultAction::Fail(Status::UNRECOVERED_READ);
    bench.soft.faults().add(FaultRule::all(fail).for_blocks(7..=7));
    assert_eq!(run(&mut pair, 0, read(7, 1)), Status::UNRECOVERED_READ);
    let log = bench.controller.error_log().unwrap();
    assert_eq!((log.len(), log[0].count, log[0].lba, log[0].nsid), (1, 1, 7, 1));
    assert_eq!((log[0].sq_id, log[0].status()), (1, Status::UNRECOVERED_READ));
    let firmware = bench.controller.firmware_log().unwrap();
    assert_eq!((firmware.active, ascii_field(&firmware.revisions[0])), (1, Ok("1.0")));
}

#[test]
fn events_are_asked_for_decoded_and_asked_for_again() {
    let bench = bench();
    let controller = &bench.controller;
    assert!(controller.take_events().unwrap().is_empty());
    controller.ask_for_events().unwrap();
    controller.set_feature(FeatureId::ASYNC_EVENTS, 1 << 1).unwrap();
    // More often than requests are held: each one that was used up is sent again.
    for _ in 0..10 {
        assert!(controller.take_events().unwrap().is_empty());
        controller.set_feature(FeatureId::TEMPERATURE_THRESHOLD, 200).unwrap();
        let events = controller.take_events().unwrap();
        assert_eq!(events.len(), 1, "{events:?}");
        assert_eq!((events[0].kind(), events[0].log()), (AsyncEventType::SMART, LogId::SMART));
        controller.set_feature(FeatureId::TEMPERATURE_THRESHOLD, 400).unwrap();
        controller.smart().unwrap();
    }
    // An event that completes while another command is waited for is neither lost nor its answer.
    controller.set_feature(FeatureId::TEMPERATURE_THRESHOLD, 200).unwrap();
    assert_eq!(controller.power_state().unwrap(), 0);
    assert_eq!(controller.take_events().unwrap().len(), 1);
}

#[test]
fn an_event_request_that_fails_is_an_error_and_not_an_event() {
    let bench = bench();
    let fail = FaultAction::Fail(Status::ASYNC_EVENT_LIMIT);
    let opcode = AdminOpcode::ASYNC_EVENT.0;
    bench.soft.faults().add(FaultRule::all(fail).for_opcode(opcode).only_nth(1));
    bench.controller.ask_for_events().unwrap();
    match bench.controller.take_events() {
        Err(NvmeError::Command { status, .. }) => assert_eq!(status, Status::ASYNC_EVENT_LIMIT),
        other => panic!("{other:?}"),
    }
    assert!(bench.controller.smart().is_ok(), "other commands go on");
}

#[test]
fn format_erases_and_waits_for_the_queues_to_go() {
    let bench = bench();
    let mut pair = commands(&bench);
    pair.write(10, &random(4, 7), false).unwrap();
    let wish = FormatWish { secure_erase: SecureErase::UserData, ..FormatWish::default() };
    let open = refused(bench.controller.format(1, &wish));
    assert!(open.contains("a queue pair is open"), "{open}");
    drop(pair);
    let crypto = FormatWish { secure_erase: SecureErase::Cryptographic, ..wish };
    assert!(refused(bench.controller.format(1, &crypto)).contains("FNA bit 2"));
    assert!(
        refused(bench.controller.format(1, &FormatWish { format: 1, ..wish }))
            .contains("no LBA format 1")
    );
    assert!(bench.controller.format(9, &wish).is_err());
    assert_eq!(bench.controller.format(1, &wish).unwrap(), bench.namespace);
    assert_eq!(read_back(&mut commands(&bench), 10, 4), vec![0; 4 * BLOCK]);
}

#[test]
fn a_format_that_fails_is_an_error() {
    let bench = bench();
    let fail = FaultAction::Fail(Status::INVALID_FORMAT);
    bench.soft.faults().add(FaultRule::all(fail).for_opcode(AdminOpcode::FORMAT.0));
    let error = bench.controller.format(1, &FormatWish::default()).unwrap_err();
    assert!(matches!(error, NvmeError::Command { .. }), "{error}");
}
