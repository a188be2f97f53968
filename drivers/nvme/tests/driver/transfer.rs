//! Every byte, every tag, every command, over the shapes that a controller and a queue can have.

use crate::beside::Beside;
use crate::model::{Model, command_blocks_max};
use crate::support::*;
use nvpoll_nvme::{DoorbellMode, Options};
use nvpoll_soft::{BlockMetadata, SoftOptions};
use nvpoll_spec::GuardFormat;
use proptest::prelude::*;

/// Bytes that the buffers of a case may have together, and those of its namespace; less where each
/// block's metadata is looked at.
const BYTES_MAX: u64 = 4 << 20;
const METADATA_BYTES_MAX: u64 = 1 << 20;

/// Largest CAP.DSTRD at which a page of shadow doorbells has a place for a queue pair.
const SHADOW_STRIDE_MAX: u8 = 8;

#[derive(Clone, Debug)]
struct Case {
    block_log2: u8,
    mdts_log2: u8,
    stride: u8,
    mqes: u32,
    depth: u16,
    io_blocks: u32,
    blocks: u64,
    pages: Pages,
    metadata: BlockMetadata,
    by_host: bool,
    stepped: bool,
    each: bool,
    sgl: bool,
    shadow: bool,
    seed: u64,
}

/// Memory pages, 4 KiB shifted left: the least and the largest that the controller has, and what the
/// driver would use.
#[derive(Clone, Copy, Debug)]
struct Pages {
    least: u8,
    most: u8,
    wanted: u8,
}

impl Pages {
    fn used(self) -> u8 {
        self.wanted.min(self.most).max(self.least)
    }
}

fn pages() -> impl Strategy<Value = Pages> {
    let least = prop_oneof![3 => Just(0u8), 2 => 1u8..=4];
    let wanted = prop_oneof![1 => Just(0u8), 1 => 1u8..=4];
    (least, 0u8..=4, wanted).prop_map(|(least, most, wanted)| Pages {
        least,
        most: most.max(least),
        wanted,
    })
}

/// How long an I/O is: in blocks, or in longest commands.
#[derive(Clone, Debug)]
enum Length {
    Blocks(u32),
    Commands(u32, i32),
}

fn length() -> impl Strategy<Value = Length> {
    prop_oneof![
        1 => Just(Length::Blocks(1)),
        2 => (1u32..20).prop_map(Length::Blocks),
        2 => (1u32..3, -2i32..3).prop_map(|(commands, more)| Length::Commands(commands, more)),
        2 => (3u32..12, -9i32..10).prop_map(|(commands, more)| Length::Commands(commands, more)),
    ]
}

fn mqes() -> impl Strategy<Value = u32> {
    prop_oneof![2 => 2u32..12, 2 => 12u32..200, 1 => 200u32..=65_536]
}

/// Every type and place of protection information, in metadata of every length.
fn metadata() -> impl Strategy<Value = BlockMetadata> {
    let bytes = prop_oneof![3 => Just(8u16), 2 => Just(16u16), 2 => Just(64u16), 1 => (1u16..40).prop_map(|n| 8 * n)];
    (bytes, any::<bool>(), 0u8..=3, any::<bool>(), any::<bool>()).prop_map(
        |(bytes, interleaved, protection, first, long)| BlockMetadata {
            bytes,
            interleaved,
            protection,
            first: first && protection != 0,
            guard: match long && bytes >= 16 && protection != 0 {
                true => GuardFormat::Bits64,
                false => GuardFormat::Bits16,
            },
        },
    )
}

fn case(
    stepped: bool,
    metadata: impl Strategy<Value = BlockMetadata>,
) -> impl Strategy<Value = Case> {
    let stride = prop_oneof![4 => Just(0u8), 3 => 1u8..8, 1 => 8u8..=15];
    let mdts = prop_oneof![4 => 1u8..=5, 2 => 6u8..=10, 1 => Just(0u8)];
    (
        9u8..=16,
        mdts,
        stride,
        mqes(),
        1u16..70,
        length(),
        0u64..40,
        (any::<bool>(), any::<bool>(), any::<bool>(), any::<u64>(), pages()),
        (metadata, any::<bool>()),
    )
        .prop_map(
            move |(
                block_log2,
                mdts,
                stride,
                mqes,
                depth,
                length,
                more,
                (each, sgl, shadow, seed, pages),
                (metadata, by_host),
            )| {
                let by_host = by_host && metadata.protection != 0;
                let block_bytes = 1u32 << block_log2;
                let is_plain = metadata.bytes == 0;
                let bytes_max = if is_plain { BYTES_MAX } else { METADATA_BYTES_MAX };
                // A transfer has to hold a block, and what comes behind it.
                let least = (block_log2 + u8::from(metadata.interleaved)).saturating_sub(12);
                // And two of the controller's pages.
                let least = least.max(pages.least + 1);
                let mdts_log2 = if mdts == 0 { 0 } else { mdts.max(least) };
                let format = SoftOptions { metadata, ..SoftOptions::default() };
                let memory_bytes = block_bytes + Beside::new(&format, by_host).between() as u32;
                let longest = command_blocks_max(memory_bytes, mdts_log2);
                let io_blocks = match length {
                    Length::Blocks(blocks) => blocks,
                    Length::Commands(commands, more) => {
                        (commands * longest).saturating_add_signed(more).max(1)
                    }
                };
                let io_blocks = io_blocks.min((bytes_max / u64::from(block_bytes)) as u32);
                let io_bytes =
                    (u64::from(io_blocks) << block_log2).next_multiple_of(4096 << pages.used());
                let pieces = io_blocks.div_ceil(longest);
                let mqes = mqes.max(pieces + 1);
                let depth = u32::from(depth).min((mqes - 1) / pieces);
                let depth = u64::from(depth).min((bytes_max / io_bytes).max(1)) as u16;
                let wanted = u64::from(io_blocks) * (u64::from(depth) / 2 + 1) + more;
                let blocks = wanted.min((bytes_max >> block_log2).max(u64::from(io_blocks) + 1));
                Case {
                    block_log2,
                    mdts_log2,
                    stride,
                    mqes,
                    depth,
                    io_blocks,
                    blocks,
                    pages,
                    metadata,
                    by_host,
                    stepped,
                    each,
                    sgl,
                    // A device with a thread of its own is not told of what stands in memory, and nor is
                    // whoever watches its registers.
                    shadow: shadow && stepped && stride <= SHADOW_STRIDE_MAX,
                    seed,
                }
            },
        )
}

fn check(case: &Case) {
    let soft = SoftOptions {
        size_bytes: case.blocks << case.block_log2,
        lba_bytes: 1 << case.block_log2,
        metadata: case.metadata,
        mqes: case.mqes,
        mdts_log2: case.mdts_log2,
        page_log2_min: case.pages.least,
        page_log2_max: case.pages.most,
        queues: 2,
        stride: case.stride,
        shadow: case.shadow,
        stepped: case.stepped,
        ..SoftOptions::default()
    };
    let page_bytes = Some(4096 << case.pages.wanted);
    let driver = Options { page_bytes, shadow_doorbells: case.shadow, ..Options::default() };
    let mut bench = Bench::with(soft, driver);
    assert_eq!(bench.controller.page_bytes(), 4096 << case.pages.used());
    bench.doorbells = if case.each { DoorbellMode::Each } else { DoorbellMode::Batch };
    bench.sgl = case.sgl;
    bench.by_host = case.by_host;
    let shape = (case.depth, case.io_blocks);
    let mut model = Model::new(&bench, 1, shape, 0..case.blocks, Random(case.seed));
    let io_bytes = u64::from(case.io_blocks) << case.block_log2;
    let steps_max = if case.metadata.bytes == 0 { 300 } else { 100 };
    model.run((BYTES_MAX / io_bytes).clamp(24, steps_max) as u32);
    let (reported, commands) = (model.reported, model.commands);
    drop(model);
    let counters = bench.soft.counters();
    assert!(reported > 0 && commands >= reported);
    assert_eq!(counters.reads + counters.writes + counters.flushes, commands);
    assert_eq!((counters.failed, counters.invalid_doorbells), (0, 0));
    let (soft, log) = bench.into_soft();
    assert_eq!(soft.dma_faults(), []);
    assert_eq!(log.mapped(), [0; 0], "memory that is still mapped");
}

fn config(cases: u32) -> ProptestConfig {
    // A failing case prints its parameters and its seed, which are all that it depends on.
    ProptestConfig {
        cases,
        failure_persistence: None,
        max_shrink_time: 30_000,
        ..ProptestConfig::default()
    }
}

proptest! {
    #![proptest_config(config(160))]

    #[test]
    fn stepped_device_and_model_agree(case in case(true, Just(BlockMetadata::default()))) {
        check(&case);
    }
}

proptest! {
    #![proptest_config(config(40))]

    #[test]
    fn threaded_device_and_model_agree(case in case(false, Just(BlockMetadata::default()))) {
        check(&case);
    }
}

proptest! {
    #![proptest_config(config(120))]

    #[test]
    fn blocks_with_metadata_and_model_agree(case in case(true, metadata())) {
        check(&case);
    }
}
