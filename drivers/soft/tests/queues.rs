//! The rings: wrap, phase, a full completion queue, doorbells that cannot be, deletion under load.

mod common;

use common::*;
use nvpoll_mem::{Doorbell, Registers};
use nvpoll_soft::SoftOptions;
use nvpoll_spec::{Admin, NvmOpcode, Status, SubmissionEntry, reg};
use proptest::prelude::*;
use std::collections::HashSet;

fn flush(cid: u16) -> SubmissionEntry {
    SubmissionEntry { cid, ..SubmissionEntry::io(NvmOpcode::FLUSH, 1, 0, 0) }
}

/// Pushes as the queue takes them, reaps as told, and checks what every completion says.
fn wraps(options: SoftOptions, entries: u32, batches: &[(u32, u32)]) {
    let mut host = Host::new(options);
    let mut pair = host.pair(1, entries);
    let most = entries - 1;
    let (mut next, mut oldest) = (0u16, 0u16);
    let reap = |pair: &mut Pair, oldest: &mut u16, next: u16| {
        let completion = pair.wait();
        assert_ok(completion);
        assert_eq!(completion.cid, *oldest, "one queue, one device: in order");
        assert_eq!(completion.sq_id, 1);
        // The head is a slot, and at least the completed one was fetched.
        assert!(u32::from(completion.sq_head) < entries);
        let fetched =
            (u32::from(completion.sq_head) + entries - u32::from(*oldest) % entries) % entries;
        let queued = u32::from(next.wrapping_sub(*oldest));
        assert!((1..=queued).contains(&fetched), "head {} of {queued}", completion.sq_head);
        *oldest = oldest.wrapping_add(1);
    };
    for (push, take) in batches {
        let room = most - u32::from(next.wrapping_sub(oldest));
        for _ in 0..(*push).min(room) {
            pair.push(flush(next));
            next = next.wrapping_add(1);
        }
        pair.ring();
        for _ in 0..(*take).min(u32::from(next.wrapping_sub(oldest))) {
            reap(&mut pair, &mut oldest, next);
        }
    }
    while oldest != next {
        reap(&mut pair, &mut oldest, next);
    }
    assert!(pair.take().is_none(), "one completion too many");
    assert_eq!(host.controller.counters().flushes, u64::from(next));
    assert_eq!(host.controller.counters().invalid_doorbells, 0);
}

/// Entries whose wrap is no power of two, so that `sq_head` arithmetic over a CID is not used.
fn batches() -> impl Strategy<Value = Vec<(u32, u32)>> {
    prop::collection::vec((0u32..20, 0u32..20), 1..60)
}

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    fn any_order_of_pushing_and_reaping(entries in 2u32..20, batches in batches()) {
        wraps(stepped("size=1M"), entries, &batches);
    }
}

#[test]
fn a_threaded_device_wraps() {
    let batches: Vec<_> = (0..200).map(|n| (n % 7, n % 5)).collect();
    for entries in [2, 3, 8, 1024] {
        wraps("size=1M".parse().unwrap(), entries, &batches);
    }
}

/// More commands than the completion queue holds: the device keeps the rest back until the head
/// moves, and overwrites nothing.
fn holds_back(options: SoftOptions) {
    let mut host = Host::new(options);
    let (sq_memory, cq_memory) = (host.buffer(4096), host.buffer(4096));
    let (sq_iova, cq_iova) = (sq_memory.iova(0), cq_memory.iova(0));
    assert_ok(host.admin.run(Admin::create_cq(1, 3, cq_iova)));
    assert_ok(host.admin.run(Admin::create_sq(1, 63, sq_iova, 1)));
    let mut pair = Pair {
        id: 1,
        sq: nvpoll_mem::SubmissionRing::new(sq_memory, 64).unwrap(),
        cq: nvpoll_mem::CompletionRing::new(cq_memory, 4).unwrap(),
        sq_bell: host.controller.doorbell(reg::sq_tail_doorbell(1, 4)).unwrap(),
        cq_bell: host.controller.doorbell(reg::cq_head_doorbell(1, 4)).unwrap(),
    };
    for cid in 0..50 {
        pair.push(flush(cid));
    }
    pair.ring();
    let take = |pair: &mut Pair, expected: u16| {
        let start = std::time::Instant::now();
        let completion = loop {
            match pair.take() {
                Some(completion) => break completion,
                None => assert!(start.elapsed() < PATIENCE, "stuck before {expected}"),
            }
        };
        assert_ok(completion);
        assert_eq!(completion.cid, expected);
    };
    (0..3).for_each(|cid| take(&mut pair, cid));
    std::thread::sleep(std::time::Duration::from_millis(10));
    assert!(pair.take().is_none(), "a queue of four holds three");
    // One slot at a time and all at once.
    let mut expected = 3;
    while expected < 50 {
        pair.ring_head();
        let most = if expected % 2 == 0 { 1 } else { 3 };
        for _ in 0..most.min(50 - expected) {
            take(&mut pair, expected);
            expected += 1;
        }
    }
    pair.ring_head();
    assert!(pair.take().is_none());
    assert_eq!(host.controller.counters().invalid_doorbells, 0);
}

#[test]
fn a_full_completion_queue_holds_back_stepped() {
    holds_back(stepped("size=1M"));
}

#[test]
fn a_full_completion_queue_holds_back_threaded() {
    holds_back("size=1M".parse().unwrap());
    holds_back("size=1M,latency=20us".parse().unwrap());
}

#[test]
fn several_submission_queues_share_a_completion_queue() {
    let mut host = Host::new(stepped("size=1M"));
    let mut first = host.pair(1, 8);
    let mut others = Vec::new();
    for qid in [2, 5] {
        let memory = host.buffer(4096);
        assert_ok(host.admin.run(Admin::create_sq(qid, 15, memory.iova(0), 1)));
        let ring = nvpoll_mem::SubmissionRing::new(memory, 16).unwrap();
        let doorbell = host.controller.doorbell(reg::sq_tail_doorbell(qid, 4)).unwrap();
        others.push((qid, ring, doorbell));
    }
    // 24 commands for a completion queue of seven: all queues are held back, and all are let go.
    let mut expected = HashSet::new();
    for (qid, ring, doorbell) in &mut others {
        for cid in 0..12 {
            ring.push(flush(cid).to_words());
            expected.insert((*qid, cid));
        }
        doorbell.ring(ring.tail());
    }
    while !expected.is_empty() {
        let completion = first.wait();
        let known = expected.remove(&(completion.sq_id, completion.cid));
        assert!(known, "{completion:?}");
    }
    assert!(first.take().is_none());
}

#[test]
fn doorbell_values_that_cannot_be_are_refused_and_counted() {
    let mut host = Host::new(stepped("size=1M"));
    let mut pair = host.pair(1, 8);
    let refused = |host: &Host| host.controller.counters().invalid_doorbells;
    for value in [8, 9, u32::MAX, 1 << 16] {
        let before = refused(&host);
        pair.sq_bell.ring(value);
        assert_eq!(refused(&host), before + 1, "tail {value}");
        pair.cq_bell.ring(value);
        assert_eq!(refused(&host), before + 2, "head {value}");
    }
    pair.cq_bell.ring(1);
    assert_eq!(refused(&host), 9, "nothing was posted to take");
    // A queue that was deleted, and one that never was.
    let before = refused(&host);
    host.controller.write32(reg::sq_tail_doorbell(2, 4), 1).unwrap();
    host.controller.write32(reg::cq_head_doorbell(64, 4), 1).unwrap();
    assert_eq!(refused(&host), before + 2);
    // And the queue still works: nothing of it was taken.
    pair.sq_bell.ring(0);
    for cid in 0..20 {
        assert_ok(pair.run(flush(cid)));
    }
    assert_eq!(refused(&host), before + 2);
}

#[test]
fn a_threaded_device_finds_stray_doorbells() {
    let mut host = Host::new("size=1M".parse().unwrap());
    let mut pair = host.pair(1, 8);
    host.controller.doorbell(reg::cq_head_doorbell(9, 4)).unwrap().ring(3);
    pair.sq_bell.ring(100);
    pair.cq_bell.ring(5);
    wait_status(&host.controller, |_| host.controller.counters().invalid_doorbells == 3);
    pair.sq_bell.ring(0);
    pair.cq_bell.ring(0);
    assert_ok(pair.run(flush(1)));
    assert_eq!(host.controller.counters().invalid_doorbells, 3, "each is told once");
}

#[test]
fn a_tail_that_passes_the_head_is_refused() {
    let mut host = Host::new(stepped("size=1M"));
    let controller = std::sync::Arc::clone(&host.controller);
    let refused = || controller.counters().invalid_doorbells;
    let memory = host.buffer(8192);
    assert_ok(host.admin.run(Admin::create_cq(1, 1, memory.iova(0))));
    assert_ok(host.admin.run(Admin::create_sq(1, 7, memory.iova(4096), 1)));
    // Seven flushes; the completion queue takes one, two more are fetched and wait.
    for slot in 0..8 {
        let words = flush(slot as u16).to_words();
        for (n, word) in words.into_iter().enumerate() {
            memory.words()[512 + slot * 8 + n].store(word, std::sync::atomic::Ordering::Relaxed);
        }
    }
    let bell = host.controller.doorbell(reg::sq_tail_doorbell(1, 4)).unwrap();
    bell.ring(7);
    assert_eq!(refused(), 0);
    // Head 3, tail 7: slots 7, 0 and 1 are free, so the tail may go to 2 and no further.
    bell.ring(4);
    assert_eq!(refused(), 1);
    bell.ring(2);
    assert_eq!(refused(), 1);
}

/// Commands that were fetched and wait for their time complete as aborted.
#[test]
fn deleting_a_queue_aborts_what_is_under_way() {
    let mut host = Host::new("size=1M,latency=30s".parse().unwrap());
    let mut pair = host.pair(1, 16);
    for cid in 0..10 {
        pair.push(flush(cid));
    }
    pair.ring();
    // All ten have to be fetched before the queue goes away.
    let counters = || host.controller.counters();
    wait_status(&host.controller, |_| counters().flushes == 10);
    assert_ok(host.admin.run(Admin::delete_sq(1)));
    for cid in 0..10 {
        let completion = pair.wait();
        assert_eq!((completion.cid, code(completion)), (cid, Status::ABORTED_SQ_DELETED));
    }
    assert_ok(host.admin.run(Admin::delete_cq(1)));
    host.pair(1, 16);
}

#[test]
fn abort_reaches_a_command_that_waits() {
    let mut host = Host::new("size=1M,latency=300ms".parse().unwrap());
    let mut pair = host.pair(1, 16);
    for cid in 0..3 {
        pair.push(flush(cid));
    }
    pair.ring();
    wait_status(&host.controller, |_| host.controller.counters().flushes == 3);
    let abort = |sq: u32, cid: u32| SubmissionEntry {
        opcode: nvpoll_spec::AdminOpcode::ABORT.0,
        cdw10: cid << 16 | sq,
        ..SubmissionEntry::default()
    };
    assert_eq!(host.admin.run(abort(1, 1)).result, 0);
    assert_eq!(host.admin.run(abort(1, 9)).result, 1);
    assert_eq!(host.admin.run(abort(7, 1)).result, 1);
    let statuses: Vec<_> = (0..3).map(|_| code(pair.wait())).collect();
    assert_eq!(statuses, [Status::SUCCESS, Status::ABORTED, Status::SUCCESS]);
}

/// Four threads on four queues of a stepped device, and of a threaded one.
#[test]
fn many_threads_many_queues() {
    for options in [stepped("size=16M"), "size=16M".parse().unwrap()] {
        let mut host = Host::new(options);
        let pairs: Vec<_> = (1..=4).map(|id| host.pair(id, 32)).collect();
        let dma = &host.dma;
        std::thread::scope(|scope| {
            for mut pair in pairs {
                scope.spawn(move || {
                    let buffer = nvpoll_mem::DmaBuf::new(dma, 4096).unwrap();
                    for round in 0..500u64 {
                        let data = pattern(round << 8 | u64::from(pair.id), 4096);
                        buffer.write(0, &data);
                        let lba = u64::from(pair.id) * 4096 + round % 100 * 8;
                        assert_ok(pair.run(io(NvmOpcode::WRITE, lba, 8, buffer.iova(0), 0)));
                        buffer.clear();
                        assert_ok(pair.run(io(NvmOpcode::READ, lba, 8, buffer.iova(0), 0)));
                        let mut back = vec![0; 4096];
                        buffer.read(0, &mut back);
                        assert_eq!(back, data);
                    }
                });
            }
        });
        assert_eq!(host.controller.counters().writes, 2_000);
    }
}
