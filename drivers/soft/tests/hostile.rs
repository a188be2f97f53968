//! Whatever a host does, the device neither panics nor hangs, touches nothing outside of what is
//! mapped, and a reset brings it back. Arithmetic is checked for overflow in test builds.

mod common;

use common::*;
use nvpoll_mem::{DmaBuf, Registers};
use nvpoll_soft::{FaultAction, FaultRule, SoftController, SoftOptions};
use nvpoll_spec::{Cns, Status, SubmissionEntry, reg};
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

/// One thing that a host may do.
#[derive(Clone, Debug)]
enum Act {
    Register { offset: usize, value: u32 },
    Doorbell { index: usize, value: u32 },
    Entry { slot: usize, entry: Box<SubmissionEntry> },
    Scribble { word: usize, value: u64 },
    Fault(FaultAction),
    Release,
    Look,
}

/// Numbers that are near something: limits, pages of the buffer, nothing at all.
fn number(base: u64) -> impl Strategy<Value = u64> {
    prop_oneof![
        0u64..8,
        (0u64..16).prop_map(move |page| base + page * 4096),
        (0u64..65_536).prop_map(move |offset| base + offset),
        any::<u64>(),
        Just(u64::MAX),
        Just(u64::MAX - 0xfff),
        (0u32..64).prop_map(|bit| 1 << bit),
    ]
}

fn entry(base: u64) -> impl Strategy<Value = SubmissionEntry> {
    let opcode = prop_oneof![0u8..=0x0d, any::<u8>()];
    let nsid = prop_oneof![4 => Just(1u32), 1 => any::<u32>()];
    let small =
        || prop_oneof![0u32..4, (0u32..4, 0u32..8).prop_map(|(a, b)| a | b << 16), any::<u32>()];
    let flags = prop_oneof![8 => Just(0u8), 1 => any::<u8>()];
    (
        opcode,
        flags,
        any::<u16>(),
        nsid,
        number(base),
        number(base),
        small(),
        small(),
        small(),
        small(),
    )
        .prop_map(|(opcode, flags, cid, nsid, prp1, prp2, cdw10, cdw11, cdw12, cdw13)| {
            SubmissionEntry {
                opcode,
                flags,
                cid,
                nsid,
                prp1,
                prp2,
                cdw10,
                cdw11,
                cdw12,
                cdw13,
                ..SubmissionEntry::default()
            }
        })
}

fn action() -> impl Strategy<Value = FaultAction> {
    prop_oneof![
        Just(FaultAction::Drop),
        Just(FaultAction::Twice),
        Just(FaultAction::StalePhase),
        Just(FaultAction::Fail(Status::INTERNAL)),
        (0u32..4).prop_map(FaultAction::Defer),
        Just(FaultAction::Delay(Duration::from_micros(10))),
        any::<u16>().prop_map(FaultAction::WrongCid),
    ]
}

fn act(base: u64) -> impl Strategy<Value = Act> {
    let cc = prop_oneof![Just(0x0046_0001u32), Just(0), Just(0x0046_4001), any::<u32>()];
    prop_oneof![
        4 => (0usize..=0x40, any::<u32>())
            .prop_map(|(offset, value)| Act::Register { offset: offset / 4 * 4, value }),
        1 => cc.prop_map(|value| Act::Register { offset: reg::CC, value }),
        8 => (0usize..12, prop_oneof![0u32..20, any::<u32>()])
            .prop_map(|(index, value)| Act::Doorbell { index, value }),
        16 => (0usize..16, entry(base))
            .prop_map(|(slot, entry)| Act::Entry { slot, entry: Box::new(entry) }),
        2 => (0usize..8192, number(base)).prop_map(|(word, value)| Act::Scribble { word, value }),
        1 => action().prop_map(Act::Fault),
        1 => Just(Act::Release),
        2 => Just(Act::Look),
    ]
}

/// Where the first mapping of a fresh controller comes to lie; a test below checks that it does.
const BASE: u64 = 1 << 32;

fn torment(options: SoftOptions, acts: &[Act]) {
    let controller = SoftController::start(options).unwrap();
    let memory = DmaBuf::new(&controller.iommu(), 65_536).unwrap();
    assert_eq!(memory.iova(0), BASE);
    controller.write32(reg::AQA, 15 | 15 << 16).unwrap();
    controller.write64(reg::ASQ, BASE).unwrap();
    controller.write64(reg::ACQ, BASE + 4096).unwrap();
    controller.write32(reg::CC, enabled().into_bits()).unwrap();
    wait_status(&controller, |csts| csts.ready());
    let mut tail = 0;
    for act in acts {
        match act {
            Act::Register { offset, value } => controller.write32(*offset, *value).unwrap(),
            Act::Doorbell { index, value } => {
                controller.write32(reg::DOORBELLS + 4 * index, *value).unwrap();
            }
            Act::Entry { slot, entry } => {
                // Into the admin queue, or into memory that an I/O queue may lie in.
                let slot = if *slot < 8 { tail } else { 512 + slot };
                for (n, word) in entry.to_words().into_iter().enumerate() {
                    memory.words()[slot * 8 + n].store(word, Relaxed);
                }
                if slot == tail {
                    tail = (tail + 1) % 16;
                    controller.write32(reg::DOORBELLS, tail as u32).unwrap();
                    controller.write32(reg::DOORBELLS + 4, tail as u32).unwrap();
                }
            }
            Act::Scribble { word, value } => memory.words()[*word].store(*value, Relaxed),
            Act::Fault(action) => {
                controller.faults().add(FaultRule::all(*action).only_nth(2));
            }
            Act::Release => controller.release_held(),
            Act::Look => drop(status(&controller)),
        }
    }
    controller.faults().clear();
    let faults = controller.dma_faults();
    for fault in faults.iter() {
        let inside = fault
            .iova
            .checked_sub(BASE)
            .is_some_and(|offset| offset.checked_add(fault.bytes).is_some_and(|end| end <= 65_536));
        assert!(!inside, "{fault}, which is mapped");
    }
    // A last rising edge, so that the next write is a falling one whatever went before.
    controller.write32(reg::CC, enabled().into_bits()).unwrap();
    controller.write32(reg::CC, 0).unwrap();
    wait_status(&controller, |csts| !csts.ready() && !csts.fatal());
    let mut host = Host::over(Arc::clone(&controller), enabled(), 8);
    assert!(host.identify(Cns::CONTROLLER, 0).is_ok());
    let mut pair = host.pair(1, 8);
    let buffer = host.buffer(4096);
    assert_ok(pair.run(io(nvpoll_spec::NvmOpcode::READ, 0, 1, buffer.iova(0), 0)));
}

proptest! {
    #![proptest_config(cases(256))]

    #[test]
    fn a_stepped_device_survives(acts in prop::collection::vec(act(BASE), 1..200)) {
        torment(stepped("size=1M,queues=3,mqes=32"), &acts);
    }

    #[test]
    fn one_without_a_transfer_limit_survives(acts in prop::collection::vec(act(BASE), 1..100)) {
        torment(stepped("size=64k,lba=4096,queues=3,mqes=32,mdts=0"), &acts);
    }
}

proptest! {
    #![proptest_config(cases(24))]

    #[test]
    fn a_threaded_device_survives(acts in prop::collection::vec(act(BASE), 1..200)) {
        torment("size=1M,queues=3,mqes=32".parse().unwrap(), &acts);
    }
}
