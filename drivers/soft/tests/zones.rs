//! Zones of the soft controller, against a model of their own: states, write pointers, limits, contents.

mod common;

use common::*;
use nvpoll_mem::DmaBuf;
use nvpoll_soft::SoftController;
use nvpoll_spec::{
    NvmOpcode, Status, SubmissionEntry, ZoneAction, ZoneDescriptor, ZoneState, Zoned,
};
use proptest::prelude::*;
use zerocopy::FromBytes;

const ZONES: u64 = 6;
const ZONE_BLOCKS: u64 = 8;
const CAPACITY: u64 = 6;
const ACTIVE: usize = 4;
const OPEN: usize = 2;

/// 512-byte blocks in six zones of eight, of which six may be written.
fn bench() -> (Host, Pair, DmaBuf) {
    let options = stepped("size=24k,zoned=4k,zcap=3k,mar=4,mor=2");
    let cc = enabled().with_command_set(6);
    let mut host = Host::over(SoftController::start(options).unwrap(), cc, 32);
    let pair = host.pair(1, 8);
    let buffer = host.buffer(4096);
    (host, pair, buffer)
}

fn at(mut entry: SubmissionEntry, buffer: &DmaBuf) -> SubmissionEntry {
    entry.prp1 = buffer.iova(0);
    entry
}

fn report(pair: &mut Pair, buffer: &DmaBuf, lba: u64, bytes: u32) -> (u64, Vec<ZoneDescriptor>) {
    buffer.write(0, &[0xee; 4096]);
    assert_ok(pair.run(at(Zoned::report(1, lba, bytes), buffer)));
    let mut page = vec![0; bytes as usize];
    buffer.read(0, &mut page);
    let told = u64::from_le_bytes(page[..8].try_into().unwrap());
    let zones = page[64..].chunks_exact(64).take(told as usize);
    (told, zones.map(|zone| ZoneDescriptor::read_from_bytes(zone).unwrap()).collect())
}

/// What a zone is to a host that watches the rules: kept as the specification's words, not as the device's.
#[derive(Clone, Debug, PartialEq)]
struct Model {
    state: ZoneState,
    /// One value a block that was written.
    data: Vec<u8>,
}

#[derive(Clone, Debug)]
enum Step {
    Write { lba: u64, blocks: u64 },
    WriteAtPointer { zone: usize, blocks: u64 },
    Append { zone: usize, blocks: u64 },
    Act { zone: usize, action: ZoneAction },
    All(ZoneAction),
    Read { lba: u64, blocks: u64 },
}

fn step() -> impl Strategy<Value = Step> {
    let action = prop_oneof![
        Just(ZoneAction::OPEN),
        Just(ZoneAction::CLOSE),
        Just(ZoneAction::FINISH),
        Just(ZoneAction::RESET)
    ];
    let zone = 0..ZONES as usize;
    prop_oneof![
        1 => (0..ZONES * ZONE_BLOCKS, 1..4u64).prop_map(|(lba, blocks)| Step::Write { lba, blocks }),
        4 => (zone.clone(), 1..4u64).prop_map(|(zone, blocks)| Step::WriteAtPointer { zone, blocks }),
        4 => (zone.clone(), 1..4u64).prop_map(|(zone, blocks)| Step::Append { zone, blocks }),
        4 => (zone, action.clone()).prop_map(|(zone, action)| Step::Act { zone, action }),
        1 => action.prop_map(Step::All),
        2 => (0..ZONES * ZONE_BLOCKS, 1..6u64).prop_map(|(lba, blocks)| Step::Read { lba, blocks }),
    ]
}

fn is_open(zone: &Model) -> bool {
    matches!(zone.state, ZoneState::IMPLICITLY_OPENED | ZoneState::EXPLICITLY_OPENED)
}

/// Takes the resources that opening `index` needs, or says which there are none of.
fn model_open(zones: &mut [Model], index: usize, to: ZoneState) -> Status {
    let active = zones.iter().filter(|zone| is_open(zone) || zone.state == ZoneState::CLOSED);
    if zones[index].state == ZoneState::EMPTY && active.count() == ACTIVE {
        return Status::ZONE_TOO_MANY_ACTIVE;
    }
    if zones.iter().filter(|zone| is_open(zone)).count() == OPEN {
        let Some(other) = zones.iter().position(|zone| zone.state == ZoneState::IMPLICITLY_OPENED)
        else {
            return Status::ZONE_TOO_MANY_OPEN;
        };
        zones[other].state = ZoneState::CLOSED;
    }
    zones[index].state = to;
    Status::SUCCESS
}

fn model_write(zones: &mut [Model], index: usize, at: u64, data: &[u8]) -> Status {
    let zone = &zones[index];
    if zone.state == ZoneState::FULL {
        return Status::ZONE_FULL;
    }
    if at + data.len() as u64 > CAPACITY {
        return Status::ZONE_BOUNDARY;
    }
    if at != zone.data.len() as u64 {
        return Status::ZONE_INVALID_WRITE;
    }
    if !is_open(zone) {
        let opened = model_open(zones, index, ZoneState::IMPLICITLY_OPENED);
        if opened != Status::SUCCESS {
            return opened;
        }
    }
    zones[index].data.extend_from_slice(data);
    if zones[index].data.len() as u64 == CAPACITY {
        zones[index].state = ZoneState::FULL;
    }
    Status::SUCCESS
}

fn model_act(zones: &mut [Model], index: usize, action: ZoneAction) -> Status {
    let state = zones[index].state;
    match action {
        ZoneAction::RESET => zones[index] = Model { state: ZoneState::EMPTY, data: vec![] },
        ZoneAction::FINISH => zones[index].state = ZoneState::FULL,
        _ if state == ZoneState::FULL => return Status::ZONE_INVALID_TRANSITION,
        ZoneAction::CLOSE if state == ZoneState::EMPTY => return Status::ZONE_INVALID_TRANSITION,
        ZoneAction::CLOSE => zones[index].state = ZoneState::CLOSED,
        _ if is_open(&zones[index]) => zones[index].state = ZoneState::EXPLICITLY_OPENED,
        _ => return model_open(zones, index, ZoneState::EXPLICITLY_OPENED),
    }
    Status::SUCCESS
}

fn model_all(zones: &mut [Model], action: ZoneAction) -> Status {
    let concerned = |zone: &Model| match action {
        ZoneAction::OPEN => zone.state == ZoneState::CLOSED,
        ZoneAction::CLOSE => is_open(zone),
        ZoneAction::FINISH => is_open(zone) || zone.state == ZoneState::CLOSED,
        _ => zone.state != ZoneState::EMPTY,
    };
    let explicit = zones.iter().filter(|zone| zone.state == ZoneState::EXPLICITLY_OPENED).count();
    let indices: Vec<usize> = (0..zones.len()).filter(|index| concerned(&zones[*index])).collect();
    if action == ZoneAction::OPEN && explicit + indices.len() > OPEN {
        return Status::ZONE_TOO_MANY_OPEN;
    }
    indices
        .into_iter()
        .for_each(|index| assert_eq!(model_act(zones, index, action), Status::SUCCESS));
    Status::SUCCESS
}

/// Fills the buffer with `blocks` blocks of a value each.
fn fill(buffer: &DmaBuf, first: u8, blocks: u64) -> Vec<u8> {
    let values: Vec<u8> = (0..blocks as u8).map(|index| first.wrapping_add(index) | 1).collect();
    let bytes: Vec<u8> = values.iter().flat_map(|value| [*value; 512]).collect();
    buffer.write(0, &bytes);
    values
}

fn read(pair: &mut Pair, buffer: &DmaBuf, lba: u64, blocks: u64) -> Result<Vec<u8>, Status> {
    match code(pair.run(io(NvmOpcode::READ, lba, blocks as u32, buffer.iova(0), 0))) {
        Status::SUCCESS => {
            let mut bytes = vec![0; blocks as usize * 512];
            buffer.read(0, &mut bytes);
            let value = |block: &[u8]| {
                assert!(block.iter().all(|byte| *byte == block[0]));
                block[0]
            };
            Ok(bytes.chunks_exact(512).map(value).collect())
        }
        failed => Err(failed),
    }
}

fn run(pair: &mut Pair, buffer: &DmaBuf, zones: &mut [Model], step: &Step, seed: u8) {
    let end = ZONES * ZONE_BLOCKS;
    let mut write = |pair: &mut Pair, lba: u64, blocks: u64| {
        let data = fill(buffer, seed, blocks);
        let seen = code(pair.run(io(NvmOpcode::WRITE, lba, blocks as u32, buffer.iova(0), 0)));
        let expected = if lba + blocks > end {
            Status::LBA_OUT_OF_RANGE
        } else {
            model_write(zones, (lba / ZONE_BLOCKS) as usize, lba % ZONE_BLOCKS, &data)
        };
        assert_eq!(seen, expected, "{step:?}");
    };
    match *step {
        Step::Write { lba, blocks } => write(pair, lba, blocks),
        Step::WriteAtPointer { zone, blocks } => {
            let lba = zone as u64 * ZONE_BLOCKS + zones[zone].data.len() as u64;
            // What a full zone answers does not depend on the place, but it has to be in there.
            let data = fill(buffer, seed, blocks);
            let seen = code(pair.run(io(NvmOpcode::WRITE, lba, blocks as u32, buffer.iova(0), 0)));
            let expected = if lba + blocks > end {
                Status::LBA_OUT_OF_RANGE
            } else {
                model_write(zones, zone, lba % ZONE_BLOCKS, &data)
            };
            assert_eq!(seen, expected, "{step:?}");
        }
        Step::Append { zone, blocks } => {
            let (start, pointer) = (zone as u64 * ZONE_BLOCKS, zones[zone].data.len() as u64);
            let data = fill(buffer, seed, blocks);
            let done = pair.run(at(Zoned::append(1, start, blocks as u16 - 1), buffer));
            let full = zones[zone].state == ZoneState::FULL;
            let expected = if !full && start + pointer + blocks > end {
                Status::LBA_OUT_OF_RANGE
            } else {
                model_write(zones, zone, pointer, &data)
            };
            assert_eq!(code(done), expected, "{step:?}");
            if expected == Status::SUCCESS {
                assert_eq!(u64::from(done.result), start + pointer, "where it went");
            }
        }
        Step::Act { zone, action } => {
            let seen = code(pair.run(Zoned::manage(1, zone as u64 * ZONE_BLOCKS, action)));
            assert_eq!(seen, model_act(zones, zone, action), "{step:?}");
        }
        Step::All(action) => {
            let seen = code(pair.run(Zoned::manage_all(1, action)));
            assert_eq!(seen, model_all(zones, action), "{step:?}");
        }
        Step::Read { lba, blocks } => {
            let seen = read(pair, buffer, lba, blocks);
            let (zone, first) = ((lba / ZONE_BLOCKS) as usize, (lba % ZONE_BLOCKS) as usize);
            if lba + blocks > end {
                assert_eq!(seen, Err(Status::LBA_OUT_OF_RANGE));
            } else if first as u64 + blocks > ZONE_BLOCKS {
                assert_eq!(seen, Err(Status::ZONE_BOUNDARY));
            } else {
                let value = |at: usize| zones[zone].data.get(at).copied().unwrap_or(0);
                let expected: Vec<u8> = (first..first + blocks as usize).map(value).collect();
                assert_eq!(seen, Ok(expected), "{step:?}");
            }
        }
    }
}

proptest! {
    #![proptest_config(cases(128))]

    #[test]
    fn zones_do_as_the_model(steps in prop::collection::vec(step(), 1..80)) {
        let (_host, mut pair, buffer) = bench();
        let mut zones = vec![Model { state: ZoneState::EMPTY, data: vec![] }; ZONES as usize];
        for (seed, step) in (0_u8..).zip(&steps) {
            run(&mut pair, &buffer, &mut zones, step, seed.wrapping_mul(8));
            let (told, seen) = report(&mut pair, &buffer, 0, 4096);
            prop_assert_eq!(told, ZONES);
            for (index, (zone, model)) in seen.iter().zip(&zones).enumerate() {
                let start = index as u64 * ZONE_BLOCKS;
                prop_assert_eq!(zone.state(), model.state, "zone {} after {:?}", index, step);
                prop_assert_eq!((zone.start, zone.capacity_blocks), (start, CAPACITY));
                prop_assert_eq!(zone.write_pointer, start + model.data.len() as u64);
            }
        }
    }
}

#[test]
fn reports_are_cut_and_chosen() {
    let (_host, mut pair, buffer) = bench();
    let (told, zones) = report(&mut pair, &buffer, ZONE_BLOCKS + 3, 64 * 3);
    assert_eq!((told, zones[0].start, zones[1].start), (2, ZONE_BLOCKS, 2 * ZONE_BLOCKS));
    assert_ok(pair.run(Zoned::manage(1, 2 * ZONE_BLOCKS, ZoneAction::FINISH)));
    let mut full = at(Zoned::report(1, 0, 4096), &buffer);
    full.cdw13 |= 5 << 8;
    assert_ok(pair.run(full));
    let mut page = vec![0; 4096];
    buffer.read(0, &mut page);
    assert_eq!((page[0], page[64 + 16]), (1, 2 * ZONE_BLOCKS as u8));
    for (wrong, word) in [("extended", 1), ("a state that is none", 8 << 8)] {
        let mut entry = at(Zoned::report(1, 0, 4096), &buffer);
        entry.cdw13 |= word;
        assert_eq!(code(pair.run(entry)), Status::INVALID_FIELD, "{wrong}");
    }
    let beyond = at(Zoned::report(1, ZONES * ZONE_BLOCKS, 4096), &buffer);
    assert_eq!(code(pair.run(beyond)), Status::LBA_OUT_OF_RANGE);
    assert_eq!(code(pair.run(Zoned::manage(1, 1, ZoneAction::RESET))), Status::INVALID_FIELD);
    assert_eq!(code(pair.run(Zoned::manage(1, 0, ZoneAction(9)))), Status::INVALID_FIELD);
    assert_eq!(code(pair.run(at(Zoned::append(1, 1, 0), &buffer))), Status::INVALID_FIELD);
    let zeroes = SubmissionEntry::io(NvmOpcode::WRITE_ZEROES, 1, 0, 0);
    assert_eq!(code(pair.run(zeroes)), Status::INVALID_OPCODE);
}

#[test]
fn options_are_checked_and_print() {
    for text in ["soft:size=24k,zoned=4k,zcap=3k,mar=4,mor=2", "soft:size=1G,zoned=1M"] {
        let options: nvpoll_soft::SoftOptions = text.parse().unwrap();
        assert_eq!(options.to_string(), text);
    }
    for (text, option) in [
        ("size=24k,zoned=5k", "zoned"),
        ("size=24k,zoned=700", "zoned"),
        ("zoned=512", "zoned"),
        ("zoned=0", "zoned"),
        ("zoned=1M,ms=8", "zoned"),
        ("zoned=1M,backing=file,file=/nowhere", "zoned"),
        ("zoned=1M,zcap=2M", "zcap"),
        ("zcap=1M", "zcap"),
        ("mar=1", "mar, mor"),
        ("zoned=1M,mar=0", "mar"),
        ("zoned=1M,mar=2,mor=3", "mor"),
    ] {
        let error = text.parse::<nvpoll_soft::SoftOptions>().unwrap_err();
        assert_eq!(error.option, option, "{text}: {error}");
    }
}
