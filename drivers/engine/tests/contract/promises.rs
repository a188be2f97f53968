//! What every engine promises.

use crate::cases::{Case, SIZE_BYTES};
use crate::lane::{Lane, flush, mix, open, open_as, pattern, read, write};
use nvpoll_engine::{
    Engine, EngineError, IoStatus, Operation, Queue, QueueShape, Tag, Target, Wait,
};
use std::time::{Duration, Instant};

/// Longer than any call that does not wait takes on a loaded machine, shorter than a wait.
const AT_ONCE: Duration = Duration::from_secs(2);

const PAGE: u32 = 4096;

/// Bytes at the start of a target that these tests confine themselves to, beside its end.
fn span(size_bytes: u64) -> u64 {
    size_bytes.min(SIZE_BYTES) / u64::from(PAGE) * u64::from(PAGE)
}

/// The largest power of two up to 1 MiB that, with `extra_bytes` more, is one I/O of this engine.
fn largest_io<E: Engine>(engine: &E, extra_bytes: u32) -> u32 {
    let possible = |log2: &u32| engine.geometry((1 << *log2) + extra_bytes).depth_max > 0;
    1 << (12..=20).rev().find(possible).expect("a page is possible")
}

pub fn an_open_target_has_a_sane_geometry_and_facts<E: Engine>(case: &Case) {
    let engine: E = open(case);
    for io_bytes in [PAGE, largest_io(&engine, 0)] {
        let geometry = engine.geometry(io_bytes);
        let shown = format!("{}: {geometry:?}", case.name);
        assert!(geometry.block_bytes.is_power_of_two() && geometry.block_bytes >= 512, "{shown}");
        assert!(geometry.size_bytes >= u64::from(geometry.block_bytes), "{shown}");
        assert_eq!(geometry.size_bytes % u64::from(geometry.block_bytes), 0, "{shown}");
        assert!(geometry.depth_max >= 1 && geometry.depth_max <= 1 << 16, "{shown}");
        assert!(geometry.queues_max != Some(0), "{shown}");
        if let Some(depth_max) = E::INFO.depth_max {
            assert!(geometry.depth_max <= depth_max, "{shown}");
        }
    }
    let facts = engine.facts();
    assert!(!facts.is_empty(), "{}: nothing is said of how it runs", case.name);
    for (name, value) in facts {
        assert!(!name.is_empty() && !value.is_empty(), "{}: {name}: {value}", case.name);
    }
    assert!(!E::INFO.summary.contains('\n') && !E::INFO.stack.is_empty());
}

pub fn every_pushed_tag_comes_back_exactly_once<E: Engine>(case: &Case) {
    let engine: E = open(case);
    for depth in [1, 7, 32] {
        let mut lane = Lane::new(case, &engine, depth, PAGE);
        let blocks = span(lane.size_bytes) / u64::from(PAGE);
        let mut pushed = 0;
        for round in 0..300u64 {
            // Some of the tags, from another one on each time.
            let count = mix(round) % u64::from(lane.depth) + 1;
            for index in 0..count {
                let tag = ((round + index) % u64::from(lane.depth)) as u16;
                let block = mix(pushed) % blocks;
                lane.push(tag, read(block * u64::from(PAGE), PAGE));
                pushed += 1;
            }
            let done = lane.finish();
            assert_eq!(done.len() as u64, count, "{}: in round {round}", case.name);
            assert!(done.values().all(|status| status.is_ok()), "{}: {done:?}", case.name);
        }
    }
}

pub fn the_depth_can_be_kept_full<E: Engine>(case: &Case) {
    let engine: E = open(case);
    for depth in [3, 64] {
        let mut lane = Lane::new(case, &engine, depth, PAGE);
        let blocks = span(lane.size_bytes) / u64::from(PAGE);
        let offset = |number: u64| mix(number) % blocks * u64::from(PAGE);
        let mut pushed = 0;
        for tag in 0..lane.depth {
            lane.push(tag, read(offset(pushed), PAGE));
            pushed += 1;
        }
        let deadline = Instant::now() + crate::lane::PATIENCE;
        while pushed < 4000 {
            lane.kick();
            for (tag, status) in lane.reap(Wait::Upto(Duration::from_millis(100))) {
                assert!(status.is_ok(), "{}: {status}", case.name);
                lane.push(tag, read(offset(pushed), PAGE));
                pushed += 1;
            }
            assert!(Instant::now() < deadline, "{}: stuck after {pushed} I/Os", case.name);
        }
        assert_eq!(lane.finish().len(), usize::from(lane.depth), "{}", case.name);
    }
}

pub fn what_is_written_is_read_back_at_every_size_and_offset<E: Engine>(case: &Case) {
    if !case.keeps_data {
        return;
    }
    let engine: E = open(case);
    let block_bytes = engine.geometry(PAGE).block_bytes;
    let largest = largest_io(&engine, 2 * block_bytes);
    let mut lane = Lane::new(case, &engine, 2, largest + 2 * block_bytes);
    let second = lane.depth - 1;
    let block = u64::from(block_bytes);
    let blocks = [1, 2, 3, 8, 9, 17, 31, 64];
    let sizes = blocks.map(|count| count * block_bytes).into_iter();
    let sizes = sizes.chain([128 << 10, (128 << 10) + block_bytes, largest - block_bytes, largest]);
    let sizes = sizes.filter(|bytes| *bytes <= largest);
    for (seed, bytes) in sizes.enumerate() {
        let room = u64::from(bytes) + block;
        let end = lane.size_bytes - room;
        let middle = span(lane.size_bytes) / 2 / block * block;
        for offset in [block, 3 * block, 7 * block, middle, end] {
            // One block before and, but for the end, one behind: neither may change.
            let whole_bytes = (room + block).min(lane.size_bytes - (offset - block)) as u32;
            let around = pattern(!0, offset - block, whole_bytes);
            lane.put(0, offset - block, &around);
            let data = pattern(seed as u64, offset, bytes);
            lane.put(second, offset, &data);
            let mut wanted = around;
            wanted[block as usize..][..bytes as usize].copy_from_slice(&data);
            lane.expect(0, offset - block, &wanted, "around a write");
        }
        let last = lane.size_bytes - u64::from(bytes);
        let data = pattern(seed as u64 ^ 0x55, last, bytes);
        lane.put(second, last, &data);
        lane.expect(0, last, &data, "at the very end");
    }
}

pub fn each_tag_has_a_buffer_of_its_own<E: Engine>(case: &Case) {
    if !case.keeps_data {
        return;
    }
    let engine: E = open(case);
    let mut lane = Lane::new(case, &engine, 32, 2 * PAGE);
    let place = |tag: u16| u64::from(tag) * 3 * u64::from(PAGE);
    // All are written at once from their buffers, then read at once into others.
    for tag in 0..lane.depth {
        lane.queue.fill(Tag(tag), &pattern(9, place(tag), 2 * PAGE));
    }
    for tag in 0..lane.depth {
        lane.push(tag, write(place(tag), 2 * PAGE));
    }
    assert!(lane.finish().values().all(|status| status.is_ok()), "{}", case.name);
    let other = |tag: u16| lane.depth - 1 - tag;
    let others: Vec<u16> = (0..lane.depth).map(other).collect();
    for &tag in &others {
        lane.queue.fill(Tag(tag), &[0; 2 * PAGE as usize]);
    }
    for (tag, &other) in (0u16..).zip(&others) {
        lane.push(tag, read(place(other), 2 * PAGE));
    }
    assert!(lane.finish().values().all(|status| status.is_ok()), "{}", case.name);
    for (tag, &other) in (0u16..).zip(&others) {
        let mut data = vec![0; 2 * PAGE as usize];
        lane.queue.copy_out(Tag(tag), &mut data);
        let wanted = pattern(9, place(other), 2 * PAGE);
        assert!(data == wanted, "{}: tag {tag} has another's data", case.name);
    }
}

pub fn a_flush_completes<E: Engine>(case: &Case) {
    let engine: E = open(case);
    let mut lane = Lane::new(case, &engine, 4, PAGE);
    lane.must(0, flush());
    // In the midst of others, and again under the same tag.
    for tag in 1..lane.depth {
        lane.push(tag, write(u64::from(tag) * u64::from(PAGE), PAGE));
    }
    lane.push(0, flush());
    let done = lane.finish();
    assert_eq!(done.len(), usize::from(lane.depth), "{}", case.name);
    assert!(done.values().all(|status| status.is_ok()), "{}: {done:?}", case.name);
    lane.must(0, read(0, PAGE));
}

/// Each operation that no engine may carry out on a target of `size` bytes in blocks of `block`,
/// with buffers of four pages.
fn bad_operations(size: u64, block: u32, make: fn(u64, u32) -> Operation) -> Vec<Operation> {
    let two = 2 * block;
    let mut bad = vec![
        make(size, block),
        make(size - u64::from(block), two),
        make(size + (1 << 40), block),
        make(u64::MAX - u64::from(block) + 1, block),
        make(u64::MAX - u64::from(block) + 1, two),
        make(1, block),
        make(u64::from(block) / 2, block),
        make(0, block / 2),
        make(0, block + 1),
        make(0, 0),
        make(0, 4 * PAGE + block),
    ];
    bad.push(make(0, u32::MAX - block + 1));
    bad
}

pub fn a_bad_operation_fails_alone_and_harms_nothing<E: Engine>(case: &Case) {
    let engine: E = open(case);
    let mut lane = Lane::new(case, &engine, 4, 4 * PAGE);
    let (size, block) = (lane.size_bytes, lane.block_bytes);
    let ends = [(0, 4 * PAGE), (size - 4 * u64::from(PAGE), 4 * PAGE)];
    for (offset, bytes) in ends {
        lane.put(0, offset, &pattern(3, offset, bytes));
    }
    for make in [read, write] {
        for operation in bad_operations(size, block, make) {
            lane.queue.fill(Tag(0), &[0xbd; 4 * PAGE as usize]);
            lane.push(0, operation);
            for tag in 1..lane.depth {
                lane.push(tag, read(0, PAGE));
            }
            let done = lane.finish();
            assert!(!done[&0].is_ok(), "{}: {operation:?} succeeded", case.name);
            let others = done.iter().filter(|&(&tag, _)| tag != 0);
            for (tag, status) in others {
                assert!(status.is_ok(), "{}: tag {tag} beside {operation:?}: {status}", case.name);
            }
        }
    }
    assert_eq!(engine.geometry(PAGE).size_bytes, size);
    if let (Target::Path(path), true) = (&case.target, case.keeps_data) {
        let bytes = std::fs::metadata(path).unwrap().len();
        assert!(bytes == 0 || bytes == SIZE_BYTES, "{}: the file has grown: {bytes}", case.name);
    }
    if case.keeps_data {
        for (offset, bytes) in ends {
            lane.expect(0, offset, &pattern(3, offset, bytes), "after operations that failed");
        }
    }
}

pub fn a_target_opened_for_reading_takes_no_write<E: Engine>(case: &Case) {
    let data = pattern(4, 0, 2 * PAGE);
    // A soft controller's memory goes with its engine: what it holds then is all zeroes.
    let survives = matches!(case.target, Target::Path(_) | Target::Pci(_));
    {
        let engine: E = open(case);
        Lane::new(case, &engine, 1, 2 * PAGE).put(0, 0, &data);
    }
    let engine: E = open_as(case, false);
    let mut lane = Lane::new(case, &engine, 1, 2 * PAGE);
    let before = lane.get(0, 0, 2 * PAGE);
    assert!(!survives || before == data, "{}: what was written is gone", case.name);
    lane.queue.fill(Tag(0), &[0x66; 2 * PAGE as usize]);
    let status = lane.run(0, write(0, 2 * PAGE));
    assert!(!status.is_ok(), "{}: a write went through", case.name);
    if case.keeps_data {
        lane.expect(0, 0, &before, "after a refused write");
    }
}

pub fn a_reap_that_may_not_wait_returns_at_once<E: Engine>(case: &Case) {
    let engine: E = open(case);
    let mut lane = Lane::new(case, &engine, 8, PAGE);
    for _ in 0..50 {
        let start = Instant::now();
        assert!(lane.reap(Wait::No).is_empty(), "{}", case.name);
        assert!(start.elapsed() < AT_ONCE, "{}: idle, {:?}", case.name, start.elapsed());
    }
    // Looking without waiting gets there as well.
    for tag in 0..lane.depth {
        lane.push(tag, read(u64::from(tag) * u64::from(PAGE), PAGE));
    }
    lane.kick();
    let (mut done, deadline) = (0, Instant::now() + crate::lane::PATIENCE);
    while done < lane.depth {
        let start = Instant::now();
        done += lane.reap(Wait::No).len() as u16;
        assert!(start.elapsed() < AT_ONCE, "{}: busy, {:?}", case.name, start.elapsed());
        assert!(Instant::now() < deadline, "{}: {done} of {} came back", case.name, lane.depth);
    }
}

pub fn a_wait_with_nothing_in_flight_ends_in_time<E: Engine>(case: &Case) {
    let engine: E = open(case);
    let mut lane = Lane::new(case, &engine, 2, PAGE);
    lane.must(0, read(0, PAGE));
    for limit in [Duration::ZERO, Duration::from_micros(10), Duration::from_millis(40)] {
        let start = Instant::now();
        assert!(lane.reap(Wait::Upto(limit)).is_empty(), "{}", case.name);
        assert!(start.elapsed() < limit + AT_ONCE, "{}: {:?}", case.name, start.elapsed());
    }
    lane.must(0, read(0, PAGE));
}

pub fn a_queue_may_be_dropped_with_io_in_flight<E: Engine>(case: &Case) {
    let engine: E = open(case);
    let start = Instant::now();
    for round in 0..30u64 {
        let mut lane = Lane::new(case, &engine, 32, 8 * PAGE);
        for tag in 0..lane.depth {
            let offset = (u64::from(tag) * 64 + round) * u64::from(PAGE);
            let make = if tag % 2 == 0 { read } else { write };
            lane.push(tag, make(offset, 8 * PAGE));
        }
        match round % 3 {
            // Pushed only; handed over; handed over and looked at once.
            0 => {}
            1 => lane.kick(),
            _ => {
                lane.kick();
                lane.reap(Wait::No);
            }
        }
    }
    assert!(start.elapsed() < crate::lane::PATIENCE, "{}: {:?}", case.name, start.elapsed());
    let mut lane = Lane::new(case, &engine, 32, PAGE);
    lane.must(0, read(0, PAGE));
}

pub fn queues_on_several_threads_do_not_mix<E: Engine>(case: &Case) {
    let engine: E = open(case);
    let workers = engine.geometry(PAGE).queues_max.unwrap_or(4).min(4);
    let block_bytes = engine.geometry(PAGE).block_bytes;
    std::thread::scope(|scope| {
        for worker in 0..workers {
            let engine = &engine;
            scope.spawn(move || {
                let mut lane = Lane::of_worker(case, engine, worker, 8, 4 * PAGE);
                // Neighbouring pieces belong to different workers.
                let piece_bytes = (4 * PAGE).max(block_bytes);
                let place = |number: u64| {
                    (number * u64::from(workers) + u64::from(worker)) * u64::from(piece_bytes)
                };
                let wanted = |number| pattern(u64::from(worker), place(number), piece_bytes);
                for number in 0..40 {
                    let tag = (number % u64::from(lane.depth)) as u16;
                    lane.put(tag, place(number), &wanted(number));
                }
                for number in 0..if case.keeps_data { 40 } else { 0 } {
                    let tag = (number % u64::from(lane.depth)) as u16;
                    lane.expect(tag, place(number), &wanted(number), "a worker's piece");
                }
            });
        }
    });
}

pub fn a_shape_outside_the_geometry_is_refused<E: Engine>(case: &Case) {
    let engine: E = open(case);
    let geometry = engine.geometry(PAGE);
    let shape = |depth, io_bytes| QueueShape { worker: 0, depth, io_bytes };
    for bad in [
        shape(0, PAGE),
        shape(geometry.depth_max + 1, PAGE),
        shape(u32::MAX, PAGE),
        shape(1, 0),
        shape(1, geometry.block_bytes / 2),
        shape(1, PAGE + 1),
        shape(1, u32::MAX),
    ] {
        match engine.queue(bad) {
            Err(EngineError::Usage(text)) => {
                assert!(!text.contains('\n') && text.len() > 20, "{}: {text}", case.name);
            }
            Err(other) => panic!("{}: {bad:?}: {other:?} is no Usage", case.name),
            Ok(_) => panic!("{}: {bad:?} was accepted", case.name),
        }
    }
    let most = shape(geometry.depth_max.min(256), PAGE);
    let mut queue = engine.queue(most).unwrap_or_else(|error| panic!("{}: {error}", case.name));
    let last = Tag((most.depth - 1) as u16);
    queue.push(last, read(0, PAGE));
    queue.kick().unwrap();
    let (mut status, deadline) = (None, Instant::now() + crate::lane::PATIENCE);
    while status.is_none() && Instant::now() < deadline {
        let sink = &mut |tag, found| status = Some((tag, found));
        queue.reap(Wait::Upto(Duration::from_millis(100)), sink).unwrap();
    }
    assert_eq!(status, Some((last, IoStatus::OK)), "{}", case.name);
}
