//! Identify pages that no good controller sends: each is refused or bounded, none is believed.

use crate::fake::{Character, Fake};
use nvpoll_nvme::limits::{COMMAND_BYTES_MAX, NAMESPACES_MAX};
use nvpoll_nvme::{Controller, NvmeError, Options, PairOptions, QueuePair, Rejected};
use nvpoll_spec::{CommandSet, ControllerIdentity, NamespaceIdentity, Version, ascii_field};
use proptest::prelude::*;
use std::sync::Arc;
use zerocopy::FromBytes;

fn open(character: Character) -> Arc<Controller<Fake>> {
    Controller::open(Fake::new(character), Options::default()).unwrap()
}

/// A controller whose one namespace's page was changed.
fn with_namespace(change: impl Fn(&mut NamespaceIdentity)) -> Arc<Controller<Fake>> {
    let mut character = Character::default();
    change(&mut character.namespace);
    open(character)
}

fn with_controller(change: impl Fn(&mut ControllerIdentity)) -> Arc<Controller<Fake>> {
    let mut character = Character::default();
    change(&mut character.controller);
    open(character)
}

fn with_list(list: impl Fn(u32) -> Vec<u32> + Send + 'static) -> Result<Vec<u32>, NvmeError> {
    open(Character { list: Box::new(list), ..Character::default() }).active_namespaces()
}

#[track_caller]
fn assert_refused(controller: &Controller<Fake>, says: &str) {
    match controller.namespace(1) {
        Err(NvmeError::Unsupported { reason, .. }) => {
            assert!(reason.starts_with("namespace 1 ") && reason.contains(says), "{reason}");
        }
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_format_that_does_not_exist_is_refused() {
    for (format, formats_z) in [(1, 0), (15, 0), (0xf, 14), (0x6f, 63 - 1), (0x7f, 20)] {
        let controller = with_namespace(|page| (page.format, page.formats_z) = (format, formats_z));
        assert_refused(&controller, "its Identify page is not valid");
    }
    // Metadata at the data's end is a bit of its own and no part of the index.
    assert!(with_namespace(|page| page.format = 0x10).namespace(1).is_ok());
}

#[test]
fn block_sizes_from_512_bytes_to_64_kib_are_driven() {
    for log2 in 0..=255u8 {
        let controller = with_namespace(|page| page.formats[0].data_log2 = log2);
        if (9..=16).contains(&log2) {
            let namespace = controller.namespace(1).unwrap();
            assert_eq!((namespace.block_bytes, namespace.block_log2), (1 << log2, log2));
        } else {
            assert_refused(&controller, &format!("2^{log2} bytes"));
        }
    }
}

#[test]
fn odd_metadata_and_what_is_not_there_are_refused() {
    let metadata = with_namespace(|page| page.formats[0].metadata_bytes = 12);
    assert_refused(&metadata, "12 bytes of metadata");
    let invalid = with_namespace(|page| page.protection = 1);
    assert_refused(&invalid, "protection information and 0 bytes");
    assert_refused(&with_namespace(|page| page.blocks = 0), "not active");
}

#[test]
fn metadata_adds_to_a_block_in_memory_where_it_comes_behind_the_data() {
    let memory_bytes = |extended: u8, protection: u8| {
        let controller = with_namespace(|page| {
            page.formats[0].metadata_bytes = 8;
            page.format |= extended << 4;
            page.protection = protection;
        });
        let namespace = controller.namespace(1).unwrap();
        (namespace.block_bytes, namespace.memory_bytes())
    };
    assert_eq!(memory_bytes(0, 0), (512, 512));
    assert_eq!(memory_bytes(1, 0), (512, 520));
    assert_eq!(memory_bytes(1, 1), (512, 512), "the controller strips it");
}

#[test]
fn a_size_is_bounded_by_its_bytes() {
    for blocks in [u64::MAX, 1 << 63, 1 << 55] {
        assert_refused(&with_namespace(|page| page.blocks = blocks), "more than 2^64 bytes");
    }
    let blocks = (1 << 55) - 1;
    let controller = with_namespace(|page| page.blocks = blocks);
    let namespace = controller.namespace(1).unwrap();
    assert_eq!(namespace.bytes(), u64::MAX - 511);
    let options = PairOptions { depth: 2, io_bytes: 4096, ..PairOptions::default() };
    let mut pair = QueuePair::new(&controller, &namespace, options).unwrap();
    assert_eq!(pair.push(0, crate::support::read(blocks - 8, 8)), Ok(()));
    assert_eq!(pair.push(1, crate::support::read(blocks - 7, 8)), Err(Rejected));
}

#[test]
fn transfer_limits_are_those_of_both_sides() {
    for (mdts, bytes) in [
        (0, COMMAND_BYTES_MAX),
        (1, 8192),
        (5, 131_072),
        (8, 1 << 20),
        (9, COMMAND_BYTES_MAX),
        (20, COMMAND_BYTES_MAX),
        (51, COMMAND_BYTES_MAX),
        (52, COMMAND_BYTES_MAX),
        (64, COMMAND_BYTES_MAX),
        (255, COMMAND_BYTES_MAX),
    ] {
        let controller = with_controller(|page| page.transfer_log2_max = mdts);
        assert_eq!(controller.command_bytes_max(), bytes, "MDTS {mdts}");
    }
}

#[test]
fn a_block_that_no_command_moves_is_refused() {
    let mut character = Character::default();
    character.controller.transfer_log2_max = 1;
    character.namespace.formats[0].data_log2 = 14;
    let controller = open(character);
    let namespace = controller.namespace(1).unwrap();
    let options = PairOptions { depth: 1, io_bytes: 16_384, ..PairOptions::default() };
    match QueuePair::new(&controller, &namespace, options) {
        Err(NvmeError::Limit { reason, .. }) => assert!(reason.contains("MDTS"), "{reason}"),
        other => panic!("{other:?}"),
    }
}

#[test]
fn sgls_are_used_only_where_the_controller_has_them() {
    for (sgls, has) in [(0, false), (1 << 2, false), (1, true), (2, true)] {
        let controller = with_controller(|page| page.sgl = sgls);
        let namespace = controller.namespace(1).unwrap();
        let options = PairOptions { depth: 1, io_bytes: 4096, sgl: true, ..PairOptions::default() };
        match QueuePair::new(&controller, &namespace, options) {
            Ok(_) => assert!(has, "SGLS {sgls:#x}"),
            Err(NvmeError::Limit { reason, .. }) => {
                assert!(!has && reason.contains("leave out --sgl"), "SGLS {sgls:#x}: {reason}");
            }
            Err(other) => panic!("{other:?}"),
        }
    }
}

#[test]
fn namespaces_beyond_the_last_are_refused() {
    for (last, refused) in
        [(0, vec![0, 1, u32::MAX]), (1, vec![0, 2, u32::MAX]), (u32::MAX, vec![0, u32::MAX])]
    {
        let controller = with_controller(|page| page.namespaces = last);
        for nsid in refused {
            let namespace = controller.namespace(nsid);
            assert!(matches!(namespace, Err(NvmeError::Limit { .. })), "{nsid} of {last}");
        }
    }
    let all = with_controller(|page| page.namespaces = u32::MAX);
    assert!(all.namespace(u32::MAX - 1).is_ok());
}

#[test]
fn namespace_lists_end() {
    assert_eq!(with_list(|_| vec![]).unwrap(), []);
    let three = |after| if after == 0 { vec![2, 7, 4_000_000_000] } else { vec![] };
    assert_eq!(with_list(three).unwrap(), [2, 7, 4_000_000_000]);
    // A page that is just full, one that is not, and what stands behind a zero.
    let full = |after: u32| match after {
        0 => (1..=1024).collect(),
        1024 => (1025..=1030).collect(),
        _ => panic!("asked on after {after}"),
    };
    assert_eq!(with_list(full).unwrap(), (1..=1030).collect::<Vec<_>>());
    let just_full = |after: u32| if after == 0 { (1..=1024).collect() } else { vec![] };
    assert_eq!(with_list(just_full).unwrap().len(), 1024);
    let gap = |_| [&[3, 0][..], &[9; 1022]].concat();
    assert_eq!(with_list(gap).unwrap(), [3]);
    let nothing_but_an_end = |_| [&[0; 1023][..], &[9]].concat();
    assert_eq!(with_list(nothing_but_an_end).unwrap(), []);
}

#[test]
fn namespace_lists_that_do_not_ascend_or_never_end_are_refused() {
    let refused = |list: Result<Vec<u32>, NvmeError>| match list {
        Err(NvmeError::Unsupported { reason, .. }) => {
            assert!(reason.contains("does not ascend, or is longer than 65536"), "{reason}");
        }
        other => panic!("{other:?}"),
    };
    refused(with_list(|_| vec![2, 1]));
    refused(with_list(|_| vec![1, 1]));
    refused(with_list(|_| vec![1; 1024]));
    // The same full page again and again.
    refused(with_list(|_| (1..=1024).collect()));
    // A new full page for ever.
    refused(with_list(|after| (after + 1..=after + 1024).collect()));
    refused(with_list(|after| vec![after.saturating_add(1).max(u32::MAX - 1); 1024]));
}

#[test]
fn before_1_1_there_is_no_list() {
    for (last, count) in [(0, 0), (3, 3), (u32::MAX, NAMESPACES_MAX)] {
        let mut character = Character {
            version: Version::new().with_major(1),
            list: Box::new(|_| panic!("there is no list")),
            ..Character::default()
        };
        character.controller.namespaces = last;
        let all = open(character).active_namespaces().unwrap();
        assert_eq!((all.len(), all.first().copied()), (count, (count > 0).then_some(1)));
    }
}

#[test]
fn the_lesser_number_of_queues_counts_and_never_more_than_asked() {
    for (granted, queues) in [
        (0, 1),
        (3 | 1 << 16, 2),
        (1 | 3 << 16, 2),
        (1022 | 0xffff << 16, 1023),
        (0xffff_ffff, 1024),
    ] {
        let controller = open(Character { granted, ..Character::default() });
        assert_eq!(controller.queues_max(), queues, "{granted:#x}");
    }
    let options = Options { queues: 5, ..Options::default() };
    let character = Character { granted: 0xffff_ffff, ..Character::default() };
    assert_eq!(Controller::open(Fake::new(character), options).unwrap().queues_max(), 5);
}

/// Text is handed on as bytes; whoever shows it escapes it, and no message of the driver's holds it.
#[test]
fn control_characters_stay_bytes() {
    let controller = with_controller(|page| {
        page.serial = *b"\x1b[2J\x07SERIAL\0\0\n\r\x7f   \xff";
        page.model = [0x80; 40];
        page.firmware = *b"\n1.0    ";
    });
    let page = controller.identity();
    assert_eq!(ascii_field(&page.serial), Err(&b"\x1b[2J\x07SERIAL"[..]));
    assert_eq!(ascii_field(&page.model), Err(&[0x80; 40][..]));
    assert_eq!(ascii_field(&page.firmware), Ok("1.0"));
    let error = controller.namespace(9).unwrap_err().to_string();
    assert!(error.chars().all(|char| !char.is_control()), "{error:?}");
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    /// Bytes at random: nothing panics, and what is accepted is within bounds.
    #[test]
    fn any_bytes_are_refused_or_sane(
        controller in proptest::collection::vec(any::<u8>(), 4096),
        namespace in proptest::collection::vec(any::<u8>(), 4096),
        // Mostly pages whose format exists, or nothing would be accepted.
        format in prop_oneof![Just(Some(9u8)), Just(Some(12)), Just(Some(16)), Just(None)],
        granted in any::<u32>(), depth in any::<u16>(), io_blocks in 1u32..4000, nsid in any::<u32>(),
    ) {
        let mut page = NamespaceIdentity::read_from_bytes(&namespace).unwrap();
        if let Some(data_log2) = format {
            (page.format, page.formats_z) = (0, 0);
            page.formats[0].data_log2 = data_log2;
            page.formats[0].metadata_bytes = 0;
            page.blocks >>= data_log2;
        }
        let character = Character {
            controller: ControllerIdentity::read_from_bytes(&controller).unwrap(),
            namespace: page,
            granted,
            ready_after: 0,
            ..Character::default()
        };
        let controller = open(character);
        prop_assert!((1..=1024).contains(&controller.queues_max()));
        prop_assert!((8192..=COMMAND_BYTES_MAX).contains(&controller.command_bytes_max()));
        for nsid in [1, nsid] {
            let Ok(namespace) = controller.namespace(nsid) else { continue };
            prop_assert!(namespace.block_bytes.is_power_of_two());
            prop_assert!((512..=65_536).contains(&namespace.block_bytes));
            prop_assert!(namespace.blocks.checked_mul(namespace.block_bytes.into()).is_some());
            let io_bytes = io_blocks * namespace.block_bytes;
            let most = QueuePair::depth_max(&controller, &namespace, io_bytes);
            let options = PairOptions { depth: depth % 4, io_bytes, ..PairOptions::default() };
            let fits = (1..=most).contains(&u32::from(options.depth));
            match QueuePair::new(&controller, &namespace, options) {
                Ok(pair) => prop_assert!(fits && pair.pieces_max() >= 1),
                Err(NvmeError::Limit { .. }) => {}
                Err(other) => prop_assert!(false, "{other}"),
            }
        }
    }
}

/// A controller of several command sets with one namespace, which says what `change` makes of it.
fn of_set(change: impl FnOnce(&mut Character)) -> Arc<Controller<Fake>> {
    let mut character = Character::default();
    character.capabilities.set_command_sets(0x41);
    character.set = Some(CommandSet::ZONED);
    character.zones.formats[0].zone_blocks = 3000;
    (character.zones.active_max_z, character.zones.open_max_z) = (13, u32::MAX);
    change(&mut character);
    open(character)
}

#[test]
fn zones_are_what_the_namespace_says() {
    let zones = of_set(|_| ()).namespace(1).unwrap().zones.unwrap();
    assert_eq!((zones.zone_blocks, zones.count), (3000, (1_u64 << 20).div_ceil(3000)));
    assert_eq!((zones.active_max, zones.open_max), (Some(14), None));
    assert_eq!((zones.append_bytes_max, zones.reads_cross), (Some(32 << 10), false));
    assert_eq!(of_set(|page| page.set = Some(CommandSet::NVM)).namespace(1).unwrap().zones, None);
    let one_set = open(Character::default());
    assert_eq!(one_set.namespace(1).unwrap().zones, None, "nothing is asked");
}

#[test]
fn zones_that_cannot_be_and_other_command_sets_are_refused() {
    type Change = fn(&mut Character);
    let cases: [(Change, &str); 4] = [
        (
            |page| page.set = Some(CommandSet::KEY_VALUE),
            "namespace 1 has the Key Value command set",
        ),
        (|page| page.set = None, "does not say which namespace 1 has"),
        (|page| page.zones.formats[0].zone_blocks = 0, "zones have 0 blocks (ZSZE)"),
        (
            |page| page.zones.formats[0].zone_blocks = u64::MAX,
            "zones have 18446744073709551615 blocks",
        ),
    ];
    for (change, says) in cases {
        let refused = of_set(change).namespace(1).unwrap_err();
        assert!(matches!(refused, NvmeError::Unsupported { .. }), "{refused:?}");
        assert!(refused.to_string().contains(says), "{refused}");
    }
}
