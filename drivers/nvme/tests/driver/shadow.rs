//! Shadow doorbells: what goes to memory, and what still goes to a register.

use crate::support::*;
use nvpoll_nvme::{DoorbellMode, NvmeError, Options};
use nvpoll_spec::{AdminOpcode, Status};

fn shadow() -> Options {
    Options { shadow_doorbells: true, ..Options::default() }
}

/// Writes and reads back `ios` blocks by `pair`; the doorbell writes that it took.
fn traffic(pair: &mut Pair, ios: u64) -> u64 {
    let before = pair.doorbell_writes();
    for lba in 0..ios {
        let data: Vec<u8> = (0..512).map(|byte| (byte as u64 ^ lba) as u8).collect();
        pair.fill(0, &data);
        assert_eq!(run(pair, 0, write(lba, 1)), Status::SUCCESS);
        pair.fill(0, &[0; 512]);
        assert_eq!(run(pair, 0, read(lba, 1)), Status::SUCCESS);
        let mut found = vec![0; 512];
        pair.copy_out(0, &mut found);
        assert_eq!(found, data, "block {lba}");
    }
    pair.doorbell_writes() - before
}

/// Both doorbells of a pair once at most: the index is 0, so to be passed, until the device has looked.
const FIRST: u64 = 2;

/// A device that looks by itself asks for no register, over any wrap of its queues.
#[test]
fn a_device_that_looks_by_itself_is_rung_at_first_alone() {
    for stride in [0, 1, 4, 8] {
        let bench = Bench::with(
            options(&format!("soft:size=1M,shadow,queues=3,stride={stride}")),
            shadow(),
        );
        let mut pair = bench.pair(4, 1);
        let writes = traffic(&mut pair, 1);
        assert!(writes <= FIRST, "stride {stride}: {writes}");
        assert_eq!(traffic(&mut pair, 150), 0, "stride {stride}");
        drop(pair);
        let (soft, log) = bench.into_soft();
        assert_eq!((soft.dma_faults(), log.mapped()), (vec![], vec![]));
    }
}

/// One that has to be woken is rung for each batch that it does not know of, as by registers alone.
#[test]
fn a_device_that_asks_for_it_is_rung_each_time() {
    let text = "soft:size=1M,stepped,shadow,mqes=5";
    let by_registers = traffic(&mut Bench::new(options(text)).pair(4, 1), 100);
    let bench = Bench::with(options(text), shadow());
    let mut pair = bench.pair(4, 1);
    let by_memory = traffic(&mut pair, 100);
    // A completion queue's head is looked at when there is no room, and so is not asked for.
    assert!((200..=by_registers).contains(&by_memory), "{by_memory} of {by_registers}");
}

#[test]
fn each_doorbell_goes_to_memory_as_well() {
    let mut bench = Bench::with(options("soft:size=1M,shadow"), shadow());
    bench.doorbells = DoorbellMode::Each;
    let writes = traffic(&mut bench.pair(4, 1), 100);
    assert!(writes <= FIRST, "{writes}");
}

/// At a stride of 4 bytes two doorbells share a word, and neighbours must not hear each other.
#[test]
fn pairs_do_not_mix_and_a_new_one_begins_at_zero() {
    let bench = Bench::with(options("soft:size=1M,shadow,queues=3"), shadow());
    for _ in 0..3 {
        let (mut first, mut second) = (bench.pair(3, 1), bench.pair(7, 2));
        for round in 0..50 {
            assert_eq!(run(&mut first, 1, read(round, 1)), Status::SUCCESS);
            assert_eq!(run(&mut second, 5, read(round, 2)), Status::SUCCESS);
            assert_eq!(run(&mut second, 6, read(round, 1)), Status::SUCCESS);
        }
    }
    assert_eq!(bench.soft.counters().invalid_doorbells, 0);
}

/// Several threads, each with a pair: what one publishes is no other's.
#[test]
fn threads_share_the_pages_and_no_word() {
    let bench = Bench::with(options("soft:size=1M,shadow,queues=4"), shadow());
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| traffic(&mut bench.pair(2, 1), 60));
        }
    });
}

#[test]
fn a_controller_without_them_says_so() {
    let stride = "soft:shadow,stepped,stride=9";
    for (text, what) in [("soft:stepped", "OACS bit 8"), (stride, "CAP.DSTRD")] {
        let soft = nvpoll_soft::SoftController::start(options(text)).unwrap();
        let (opened, log) = open(&soft, shadow());
        match opened {
            Err(NvmeError::Limit { reason, .. }) => {
                assert!(reason.contains(what) && reason.contains("leave out"), "{reason}");
            }
            other => panic!("{text}: {other:?}"),
        }
        assert_eq!(log.mapped(), [0; 0], "{text}");
    }
    let bench = Bench::new(options("soft:shadow,stepped"));
    assert!(!bench.controller.has_shadow_doorbells(), "not without being asked");
}

/// The pages go when the device is disabled and not before, and a refusal leaves none.
#[test]
fn the_pages_last_until_the_device_is_off() {
    let bench = Bench::with(options("soft:size=1M,shadow,stepped"), shadow());
    let with = bench.log.mapped().len();
    assert_eq!(with, Bench::new(options("soft:size=1M,stepped")).log.mapped().len() + 2);
    let (_, log) = bench.into_soft();
    assert_eq!(log.mapped(), [0; 0]);
    let soft = nvpoll_soft::SoftController::start(options("soft:shadow,stepped")).unwrap();
    let fail = nvpoll_soft::FaultAction::Fail(Status::INVALID_FIELD);
    let rule = nvpoll_soft::FaultRule::all(fail);
    soft.faults().add(rule.for_opcode(AdminOpcode::DOORBELL_BUFFER_CONFIG.0));
    let (opened, log) = open(&soft, shadow());
    let error = opened.unwrap_err().to_string();
    assert!(error.contains("Doorbell Buffer Config"), "{error}");
    assert_eq!(log.mapped(), [0; 0]);
}
