//! Both engines' logic against a fake Windows; on Windows, IoRing's absence or presence.

use super::{PortEngine, RingEngine, RingTable};
use crate::{
    Engine, EngineError, IoStatus, OpenOptions, Operation, OperationKind, Queue, QueueShape, Tag,
    Target, Wait,
};
use nvpoll_windows::{Fake, FakeDisk, NtStatus, Outcome, RingCapabilities, Win32Error};
use std::time::{Duration, Instant};

const DISK: &str = r"\\.\PhysicalDrive1";
const FILE: &str = "file";
const SIZE_BYTES: usize = 1 << 20;
const IO_ERROR: NtStatus = NtStatus(0xc000_0185);

impl RingTable for Fake {
    fn find() -> Result<Self, &'static str> {
        Err("CreateIoRing")
    }
}

fn fake() -> Fake {
    let data: Vec<u8> = (0..SIZE_BYTES).map(|at| (at / 512) as u8).collect();
    let disk = FakeDisk { data, sector_bytes: 512, ..FakeDisk::default() };
    Fake::new(vec![
        FakeDisk { path: DISK.to_owned(), number: Some(1), ..disk.clone() },
        FakeDisk { path: FILE.to_owned(), ..disk },
    ])
}

fn writable() -> OpenOptions {
    OpenOptions { writable: true, ..OpenOptions::default() }
}

fn ports(fake: &Fake, path: &str) -> Result<PortEngine<Fake>, EngineError> {
    PortEngine::open_by(fake.clone(), &Target::Path(path.into()), &writable())
}

fn rings(fake: &Fake, path: &str) -> Result<RingEngine<Fake, Fake>, EngineError> {
    RingEngine::open_by(fake.clone(), fake.clone(), &Target::Path(path.into()), &writable())
}

const SHAPE: QueueShape = QueueShape { worker: 0, depth: 8, io_bytes: 4096 };

fn operation(kind: OperationKind, offset: u64) -> Operation {
    Operation { kind, offset, bytes: 4096 }
}

fn read(offset: u64) -> Operation {
    operation(OperationKind::Read, offset)
}

/// What comes back until `count` have, in order.
fn reap(queue: &mut impl Queue, count: usize) -> Vec<(u16, IoStatus)> {
    let (mut seen, start) = (Vec::new(), Instant::now());
    while seen.len() < count {
        let sink = &mut |tag: Tag, status| seen.push((tag.0, status));
        queue.reap(Wait::Upto(Duration::from_millis(1)), sink).unwrap();
        assert!(start.elapsed().as_secs() < 30, "only {seen:?}");
    }
    let sink = &mut |tag: Tag, status| seen.push((tag.0, status));
    assert_eq!(queue.reap(Wait::No, sink).unwrap(), 0, "{seen:?}");
    seen
}

fn block(queue: &impl Queue, tag: u16) -> [u8; 512] {
    let mut data = [0; 512];
    queue.copy_out(Tag(tag), &mut data);
    data
}

/// What both engines promise whatever Windows makes of the requests.
fn each_request_has_its_own_outcome<Q: Queue>(fake: &Fake, queue: &mut Q) {
    let outcomes = [
        Outcome::AtOnce,
        Outcome::Later,
        Outcome::Short(512),
        Outcome::Fails(IO_ERROR),
        Outcome::FailsAtOnce(Win32Error::ACCESS_DENIED),
        Outcome::ShortAtOnce(1024),
    ];
    fake.next(&outcomes);
    for tag in 0..6u16 {
        queue.push(Tag(tag), read(u64::from(tag) * 8192));
    }
    queue.push(Tag(6), read(SIZE_BYTES as u64));
    queue.push(Tag(7), operation(OperationKind::Flush, 3));
    queue.kick().unwrap();
    let mut seen = reap(queue, 8);
    seen.sort_unstable();
    let (ok, short) = (IoStatus::OK, IoStatus::SHORT);
    let (io, denied) = (IoStatus::errno(1117), IoStatus::errno(5));
    let wanted = [
        (0, ok),
        (1, ok),
        (2, short),
        (3, io),
        (4, denied),
        (5, short),
        (6, IoStatus::REJECTED),
        (7, ok),
    ];
    assert_eq!(seen, wanted);
    assert_eq!(block(queue, 0), [0; 512]);
    assert_eq!(block(queue, 1), [16; 512], "the data of its own offset");
    assert_eq!(fake.flushes(), 1);
}

/// Requests end in any order, many times over, each with its own data.
fn tags_and_buffers_do_not_mix<Q: Queue>(fake: &Fake, queue: &mut Q) {
    fake.newest_first();
    for round in 0..50u64 {
        let mixed = [Outcome::Later, Outcome::AtOnce, Outcome::Later, Outcome::Later];
        fake.next(if round % 2 == 0 { &mixed } else { &[] });
        let place = |tag: u64| (round * 8 + tag) % 255 * 4096;
        for tag in 0..8u16 {
            queue.fill(Tag(tag), &[0xee; 4096]);
            queue.push(Tag(tag), read(place(tag.into())));
        }
        queue.kick().unwrap();
        let seen = reap(queue, 8);
        assert!(seen.iter().all(|(_, status)| status.is_ok()), "{seen:?}");
        for tag in 0..8u16 {
            assert_eq!(block(queue, tag), [(place(tag.into()) / 512) as u8; 512], "tag {tag}");
        }
    }
}

fn what_is_written_lies_there<Q: Queue>(fake: &Fake, queue: &mut Q) {
    queue.fill(Tag(3), &[0xab; 4096]);
    queue.push(Tag(3), operation(OperationKind::Write, 4096));
    queue.kick().unwrap();
    assert_eq!(reap(queue, 1), [(3, IoStatus::OK)]);
    let data = fake.data(FILE);
    assert_eq!((data[4095], data[4096], data[8191], data[8192]), (7, 0xab, 0xab, 16));
}

fn fails(queue: &mut impl Queue) -> String {
    let start = Instant::now();
    loop {
        match queue.reap(Wait::No, &mut |_, _| ()) {
            Err(error) => return error.to_string(),
            Ok(_) => assert!(start.elapsed().as_secs() < 30, "nothing failed"),
        }
    }
}

#[test]
fn iocp_outcomes_order_and_data() {
    let fake = fake();
    let engine = ports(&fake, FILE).unwrap();
    let mut queue = engine.queue(SHAPE).unwrap();
    assert!(queue.skips());
    each_request_has_its_own_outcome(&fake, &mut queue);
    tags_and_buffers_do_not_mix(&fake, &mut queue);
    what_is_written_lies_there(&fake, &mut queue);
    drop(queue);
    let facts = engine.facts();
    let at_once = facts.iter().find(|(name, _)| *name == "succeeded at once").unwrap();
    assert_eq!(at_once.1, "27 of 407");
    assert_eq!(fake.open_handles(), 0);
}

#[test]
fn ioring_outcomes_order_and_data() {
    let fake = fake();
    let engine = rings(&fake, FILE).unwrap();
    let mut queue = engine.queue(SHAPE).unwrap();
    each_request_has_its_own_outcome(&fake, &mut queue);
    tags_and_buffers_do_not_mix(&fake, &mut queue);
    what_is_written_lies_there(&fake, &mut queue);
    drop(queue);
    assert_eq!(fake.open_handles(), 0);
}

#[test]
fn without_skipping_what_succeeds_at_once_is_reported_once() {
    let fake = fake();
    fake.has_no_skip();
    fake.usually(Outcome::AtOnce);
    let engine = ports(&fake, FILE).unwrap();
    let mut queue = engine.queue(SHAPE).unwrap();
    assert!(!queue.skips());
    tags_and_buffers_do_not_mix(&fake, &mut queue);
    let facts = engine.facts();
    let skips = facts.iter().find(|(name, _)| *name == "success at once").unwrap();
    assert!(skips.1.contains("as well"), "{skips:?}");
}

#[test]
fn a_completion_that_comes_twice_ends_the_run() {
    let fake = fake();
    let engine = ports(&fake, FILE).unwrap();
    let mut queue = engine.queue(SHAPE).unwrap();
    fake.next(&[Outcome::Twice]);
    queue.push(Tag(0), read(0));
    queue.kick().unwrap();
    assert!(fails(&mut queue).contains("matches no I/O in flight"));
    let engine = rings(&fake, FILE).unwrap();
    let mut queue = engine.queue(SHAPE).unwrap();
    fake.next(&[Outcome::Twice]);
    queue.push(Tag(0), read(0));
    queue.kick().unwrap();
    assert!(fails(&mut queue).contains("matches no I/O in flight"));
}

#[test]
fn a_tag_that_is_used_wrongly_ends_the_run() {
    let fake = fake();
    let engine = ports(&fake, FILE).unwrap();
    for wrong in [Tag(8), Tag(2)] {
        let mut queue = engine.queue(SHAPE).unwrap();
        queue.push(Tag(2), read(0));
        queue.push(wrong, read(0));
        assert!(fails(&mut queue).contains("bug of the program"));
        let rings = rings(&fake, FILE).unwrap();
        let mut queue = rings.queue(SHAPE).unwrap();
        queue.push(Tag(2), read(0));
        queue.push(wrong, read(0));
        assert!(fails(&mut queue).contains("bug of the program"));
    }
}

#[test]
fn a_queue_is_dropped_with_requests_under_way() {
    let fake = fake();
    let engine = ports(&fake, FILE).unwrap();
    for outcome in [Outcome::Later, Outcome::Fails(IO_ERROR)] {
        let mut queue = engine.queue(SHAPE).unwrap();
        fake.next(&[outcome; 4]);
        (0..4).for_each(|tag| queue.push(Tag(tag), read(0)));
        queue.kick().unwrap();
    }
    let rings = rings(&fake, FILE).unwrap();
    let mut queue = rings.queue(SHAPE).unwrap();
    (0..4).for_each(|tag| queue.push(Tag(tag), read(0)));
    queue.kick().unwrap();
    drop(queue);
    assert_eq!(fake.open_handles(), 0);
}

#[test]
fn a_request_that_never_ends_does_not_hold_the_program_for_ever() {
    let fake = fake();
    let engine = ports(&fake, FILE).unwrap();
    let mut queue = engine.queue(SHAPE).unwrap();
    fake.next(&[Outcome::Never]);
    queue.push(Tag(0), read(0));
    queue.kick().unwrap();
    let start = Instant::now();
    drop(queue);
    let taken = start.elapsed();
    assert!(taken >= super::DROP_WAIT_MAX && taken < super::DROP_WAIT_MAX * 3, "{taken:?}");
}

#[test]
fn refused_writes_are_explained_with_the_disks_number() {
    let fake = fake();
    let engine = ports(&fake, DISK).unwrap();
    assert_eq!(engine.cautions(), []);
    let mut queue = engine.queue(SHAPE).unwrap();
    fake.next(&[Outcome::Fails(NtStatus(0xc000_0022))]);
    queue.push(Tag(0), operation(OperationKind::Write, 0));
    queue.kick().unwrap();
    assert_eq!(reap(&mut queue, 1), [(0, IoStatus::errno(5))]);
    let text = engine.cautions().remove(0).text;
    assert!(text.contains("Set-Disk -Number 1 -IsOffline $true"), "{text}");
}

#[test]
fn targets_are_measured_or_refused_with_what_to_do() {
    let fake = fake();
    let geometry = ports(&fake, DISK).unwrap().geometry(4096);
    assert_eq!((geometry.size_bytes, geometry.block_bytes), (SIZE_BYTES as u64, 512));
    let error = ports(&fake, "missing").unwrap_err().to_string();
    assert!(error.contains("Windows error 2") && error.contains("nvpoll list"), "{error}");
    let denied = FakeDisk {
        path: DISK.to_owned(),
        refuses_writers: Some(Win32Error::ACCESS_DENIED),
        ..FakeDisk::default()
    };
    let error = ports(&Fake::new(vec![denied]), DISK).unwrap_err().to_string();
    assert!(error.contains("error 5") && error.contains("elevated"), "{error}");
    let untold = FakeDisk { path: FILE.to_owned(), data: vec![0; 10_000], ..FakeDisk::default() };
    let engine = ports(&Fake::new(vec![untold]), FILE).unwrap();
    let geometry = engine.geometry(4096);
    assert_eq!((geometry.size_bytes, geometry.block_bytes), (8192, 4096), "whole assumed sectors");
    assert!(engine.facts().iter().any(|(_, text)| text.contains("assumed")));
    let tiny = FakeDisk { path: FILE.to_owned(), data: vec![0; 100], ..FakeDisk::default() };
    let error = ports(&Fake::new(vec![tiny]), FILE).unwrap_err().to_string();
    assert!(error.contains("less than one sector"), "{error}");
    let error = PortEngine::open_by(fake, &Target::Null, &writable()).unwrap_err().to_string();
    assert!(error.contains("PhysicalDrive1"), "{error}");
}

#[test]
fn a_ring_that_only_reads_is_not_written_through() {
    let fake = fake();
    let old =
        RingCapabilities { version: 1, submission_max: 64, completion_max: 128, emulated: true };
    fake.rings_can(old);
    let error = rings(&fake, FILE).unwrap_err().to_string();
    assert!(error.contains("version 1") && error.contains("iocp"), "{error}");
    let reads = RingEngine::<Fake, Fake>::open_by(
        fake.clone(),
        fake.clone(),
        &Target::Path(FILE.into()),
        &OpenOptions::default(),
    )
    .unwrap();
    assert_eq!(reads.geometry(4096).depth_max, 64);
    assert!(reads.facts().iter().any(|(_, text)| text.contains("emulated")));
}

#[test]
fn a_windows_without_rings_says_so() {
    let error = <RingEngine<Fake, Fake> as Engine>::available().unwrap_err();
    assert!(matches!(error, EngineError::Unavailable(_)));
    assert!(error.to_string().contains("this Windows has no IoRing (CreateIoRing"), "{error}");
}

#[cfg(windows)]
#[test]
fn this_windows_has_rings_or_says_so() {
    match super::IoRing::available() {
        Ok(()) => {}
        Err(error) => assert!(error.to_string().contains("has no IoRing"), "{error}"),
    }
}
