//! What some controllers need beyond the specification is done, and nothing of it otherwise.

use crate::support::*;
use nvpoll_nvme::{NvmeError, Options, QueuePair, Quirks};
use nvpoll_soft::SoftController;
use nvpoll_spec::AdminOpcode;
use std::time::{Duration, Instant};

fn with(quirks: Quirks) -> Bench {
    let driver = Options { quirks: Some(quirks), ..Options::default() };
    Bench::with(options("soft:size=8M,stepped"), driver)
}

fn depth_max(bench: &Bench) -> u32 {
    QueuePair::depth_max(&bench.controller, &bench.namespace, 4096)
}

/// CDW11 of the command that created the submission queue of a pair.
fn queue_flags(bench: &Bench) -> u32 {
    let _pair = bench.pair(1, 8);
    let created = bench.log.take_commands(0);
    let mut created = created.iter().filter(|entry| entry.opcode == AdminOpcode::CREATE_SQ.0);
    created.next().unwrap().cdw11
}

#[test]
fn a_controller_without_quirks_gets_none() {
    let bench = Bench::new(options("soft:size=8M,stepped"));
    assert!(bench.controller.quirks().is_empty());
    assert!(depth_max(&bench) > 1);
    assert!(bench.controller.command_bytes_max() > 8192);
    // Contiguous, urgent priority, completing to queue 1.
    assert_eq!(queue_flags(&bench), 1 | 1 << 16);
}

#[test]
fn one_command_at_a_time_is_a_depth_of_one() {
    let bench = with(Quirks::ONE_COMMAND);
    assert_eq!(depth_max(&bench), 1);
    assert!(matches!(bench.try_pair(2, 8), Err(NvmeError::Limit { .. })));
    let mut pair = bench.pair(1, 8);
    pair.push(0, write(8, 8)).unwrap();
    pair.kick();
    assert!(wait(&mut pair).1.is_success());
}

#[test]
fn without_lists_no_command_names_more_than_two_pages() {
    let bench = with(Quirks::NO_PRP_LISTS);
    assert_eq!(bench.controller.command_bytes_max(), 8192);
    let mut pair = bench.pair(2, 256);
    pair.push(0, write(3, 256)).unwrap();
    pair.kick();
    assert!(wait(&mut pair).1.is_success());
    let commands = bench.log.take_commands(1);
    assert_eq!(commands.len(), 16);
    assert!(commands.iter().all(|entry| entry.blocks_z() == 15));
}

#[test]
fn queues_of_medium_priority() {
    assert_eq!(queue_flags(&with(Quirks::MEDIUM_PRIORITY)), 1 | 2 << 1 | 1 << 16);
}

#[test]
fn entries_of_128_bytes_are_refused() {
    let soft = SoftController::start(options("soft:size=1M,stepped")).unwrap();
    let driver = Options { quirks: Some(Quirks::ENTRIES_OF_128), ..Options::default() };
    let error = open(&soft, driver).0.unwrap_err();
    assert!(matches!(error, NvmeError::Unsupported { .. }), "{error}");
    assert!(error.to_string().contains("128 bytes"), "{error}");
}

#[test]
fn delays_are_kept() {
    let took = |quirks: Quirks| {
        let start = Instant::now();
        drop(with(quirks));
        start.elapsed()
    };
    // Once on the way down: the fresh controller was not enabled.
    assert!(took(Quirks::DELAY_BEFORE_READY) >= Duration::from_millis(2300));
    assert!(took(Quirks::DELAY_BEFORE_INIT) >= Duration::from_secs(2));
}
