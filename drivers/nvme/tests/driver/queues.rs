//! Several queue pairs of one controller.

use crate::model::Model;
use crate::spy::{Event, Log};
use crate::support::*;
use nvpoll_nvme::{NvmeError, Options};
use nvpoll_soft::{FaultAction, FaultRule};
use nvpoll_spec::{AdminOpcode, Status};
use std::sync::Arc;

/// The identifier of the completion queue that was created last.
fn created(log: &Log) -> Option<u16> {
    let commands = log.take_commands(0);
    let create = commands.iter().rfind(|entry| entry.opcode == AdminOpcode::CREATE_CQ.0)?;
    Some(create.cdw10 as u16)
}

#[test]
fn four_threads_drive_four_queues_of_one_device() {
    let bench = Bench::new(options("soft:size=4M,lba=4k,mdts=16k,queues=4"));
    let shapes = [(8, 1), (3, 9), (1, 4), (20, 6)];
    let models = shapes.into_iter().zip(1u16..).map(|(shape, queue)| {
        let first = u64::from(queue - 1) * 256;
        Model::new(&bench, queue, shape, first..first + 256, Random(queue.into()))
    });
    let models: Vec<Model> = models.collect();
    let reported = std::thread::scope(|scope| {
        let run = |mut model: Model| {
            model.run(300);
            (model.reported, model.commands)
        };
        let threads: Vec<_> =
            models.into_iter().map(|model| scope.spawn(move || run(model))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect::<Vec<_>>()
    });
    assert!(reported.iter().all(|(reported, _)| *reported > 100), "{reported:?}");
    let counters = bench.soft.counters();
    let commands: u64 = reported.iter().map(|(_, commands)| commands).sum();
    assert_eq!(counters.reads + counters.writes + counters.flushes, commands);
    let (soft, log) = bench.into_soft();
    assert_eq!((soft.dma_faults(), log.mapped()), (vec![], vec![]));
}

#[test]
fn two_queues_on_one_thread_do_not_mix() {
    let bench = Bench::new(options("soft:size=1M,mdts=8k,stepped"));
    let mut first = Model::new(&bench, 1, (4, 20), 0..1024, Random(1));
    let mut second = Model::new(&bench, 2, (7, 3), 1024..2048, Random(2));
    for _ in 0..20 {
        first.run(10);
        second.run(10);
    }
    assert_eq!(bench.soft.dma_faults(), []);
}

#[test]
fn the_granted_number_of_queues_is_honoured() {
    let bench = Bench::new(options("soft:size=1M,queues=3,stepped"));
    assert_eq!(bench.controller.queues_max(), 3);
    let pairs: Vec<Pair> = (0..3).map(|_| bench.pair(4, 1)).collect();
    match bench.try_pair(4, 1) {
        Err(NvmeError::Limit { reason, .. }) => assert!(reason.contains("all 3 "), "{reason}"),
        other => panic!("{other:?}"),
    }
    drop(pairs);
    for (asked, granted) in [(0, 1), (1, 1), (2, 2), (3, 3), (64, 3), (u16::MAX, 3)] {
        let driver = Options { queues: asked, ..Options::default() };
        let bench = Bench::with(options("soft:size=1M,queues=3,stepped"), driver);
        assert_eq!(bench.controller.queues_max(), granted, "{asked} asked");
    }
}

#[test]
fn identifiers_are_used_again() {
    let bench = Bench::new(options("soft:size=1M,queues=3,stepped"));
    let _first = bench.pair(4, 1);
    let second = bench.pair(4, 1);
    let mut third = bench.pair(4, 1);
    assert_eq!(created(&bench.log), Some(3));
    drop(second);
    let mut again = bench.pair(4, 1);
    assert_eq!(created(&bench.log), Some(2));
    for round in 0..10 {
        assert_eq!(run(&mut again, 0, read(round, 1)), Status::SUCCESS);
        assert_eq!(run(&mut third, 3, read(round, 1)), Status::SUCCESS);
    }
}

#[test]
fn a_refused_creation_leaves_nothing_behind() {
    let bench = Bench::new(options("soft:size=1M,queues=1,stepped"));
    let before = bench.log.mapped();
    for opcode in [AdminOpcode::CREATE_CQ, AdminOpcode::CREATE_SQ] {
        let fail = FaultAction::Fail(Status::INVALID_QUEUE_SIZE);
        bench.soft.faults().add(FaultRule::all(fail).for_opcode(opcode.0).only_nth(1));
        match bench.try_pair(4, 40) {
            Err(NvmeError::Command { status, command, .. }) => {
                assert_eq!(status, Status::INVALID_QUEUE_SIZE);
                assert!(command.starts_with("Create I/O") && command.ends_with("Queue 1"));
            }
            other => panic!("{other:?}"),
        }
        assert_eq!(bench.log.mapped(), before, "{opcode}");
    }
    assert_eq!(run(&mut bench.pair(4, 1), 0, read(0, 1)), Status::SUCCESS, "queue 1 is free");
}

#[test]
fn a_creation_that_is_not_undone_keeps_its_memory_and_its_identifier() {
    let bench = Bench::new(options("soft:size=1M,queues=2,stepped"));
    let before = bench.log.mapped().len();
    for opcode in [AdminOpcode::CREATE_SQ, AdminOpcode::DELETE_CQ] {
        let fail = FaultAction::Fail(Status::INTERNAL);
        bench.soft.faults().add(FaultRule::all(fail).for_opcode(opcode.0).only_nth(1));
    }
    assert!(matches!(bench.try_pair(4, 1), Err(NvmeError::Command { .. })));
    assert_eq!(bench.log.mapped().len(), before + 2, "the rings");
    drop(bench.pair(4, 1));
    assert_eq!(created(&bench.log), Some(2), "the device still has a queue 1");
    let (_, log) = bench.into_soft();
    crate::order::assert_orderly(&log.take_events());
    assert_eq!(log.mapped(), [0; 0]);
}

/// What the device still does with a queue that goes away, it does to memory that is there.
#[test]
fn memory_stays_until_the_queues_are_deleted() {
    let bench = Bench::new(options("soft:size=1M,mdts=8k,stepped"));
    let hold = FaultAction::Delay(std::time::Duration::ZERO);
    bench.soft.faults().add(FaultRule::all(hold).on_queue(1));
    let mut pair = bench.pair(5, 40);
    for tag in 0..4 {
        pair.push(tag, write(u64::from(tag) * 40, 40)).unwrap();
    }
    pair.kick();
    assert_eq!(reap(&mut pair), []);
    // And one of which the device never hears.
    pair.push(4, write(160, 40)).unwrap();
    bench.log.take_events();
    drop(pair);
    let events = bench.log.take_events();
    let deleted = events.iter().position(|event| *event == Event::Admin(AdminOpcode::DELETE_CQ));
    let unmapped = events.iter().position(|event| matches!(event, Event::Unmap(_)));
    assert!(deleted.is_some() && deleted < unmapped, "{events:?}");
    bench.soft.faults().clear();
    bench.soft.release_held();
    assert_eq!(run(&mut bench.pair(1, 1), 0, FLUSH), Status::SUCCESS);
    assert_eq!(bench.soft.dma_faults(), []);
}

#[test]
fn a_queue_that_cannot_be_deleted_keeps_its_memory_and_its_identifier() {
    for opcode in [AdminOpcode::DELETE_SQ, AdminOpcode::DELETE_CQ] {
        let bench = Bench::new(options("soft:size=1M,stepped"));
        let pair = bench.pair(4, 40);
        let mapped = bench.log.mapped();
        let fail = FaultAction::Fail(Status::INTERNAL);
        bench.soft.faults().add(FaultRule::all(fail).for_opcode(opcode.0).only_nth(1));
        drop(pair);
        assert_eq!(bench.log.mapped(), mapped);
        let mut next = bench.pair(1, 1);
        assert_eq!(created(&bench.log), Some(2));
        assert_eq!(run(&mut next, 0, FLUSH), Status::SUCCESS);
        drop(next);
        let (soft, log) = bench.into_soft();
        crate::order::assert_orderly(&log.take_events());
        assert_eq!((soft.dma_faults(), log.mapped()), (vec![], vec![]));
    }
}

/// The handle may go first: a pair keeps its controller, wherever the pair ends.
#[test]
fn the_last_pair_closes_the_controller_in_its_own_thread() {
    let bench = Bench::new(options("soft:size=1M"));
    let (mut pair, other) = (bench.pair(4, 1), bench.pair(4, 1));
    let (soft, log) = bench.into_soft();
    assert!(!log.take_events().contains(&Event::Closed));
    let thread = std::thread::spawn(move || {
        assert_eq!(run(&mut pair, 0, write(0, 1)), Status::SUCCESS);
    });
    thread.join().unwrap();
    assert!(!log.take_events().contains(&Event::Closed));
    std::thread::spawn(move || drop(other)).join().unwrap();
    crate::order::assert_orderly(&log.take_events());
    assert_eq!((soft.dma_faults(), log.mapped()), (vec![], vec![]));
    assert_eq!(Arc::strong_count(&soft), 1);
}
