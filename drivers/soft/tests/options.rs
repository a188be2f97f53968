//! `soft:…` as text: what is taken, what is printed, what is refused and how.

mod common;

use nvpoll_soft::{Backing, BlockMetadata, SoftController, SoftOptions};
use nvpoll_spec::GuardFormat;
use proptest::prelude::*;
use std::time::Duration;

fn parse(text: &str) -> SoftOptions {
    text.parse().unwrap_or_else(|error| panic!("{text:?}: {error}"))
}

#[test]
fn all_spellings_of_nothing_are_the_default() {
    for text in ["soft", "soft:", ""] {
        assert_eq!(parse(text), SoftOptions::default(), "{text:?}");
    }
    assert_eq!(SoftOptions::default().to_string(), "soft:size=1G");
}

#[test]
fn every_option_is_understood() {
    let all = "soft:size=4G,lba=4k,latency=80us,iops=500k,mqes=65536,mdts=256k,queues=16,mpsmin=16k,mpsmax=32k,\
               stride=2,timeout=1500ms,serial=X 1=y,backing=null,shadow";
    let options = parse(all);
    let expected = SoftOptions {
        zoned: nvpoll_soft::ZonedOptions::default(),
        size_bytes: 4 << 30,
        lba_bytes: 4096,
        latency: Duration::from_micros(80),
        iops: Some(500_000),
        backing: Backing::Null,
        mqes: 65_536,
        mdts_log2: 6,
        page_log2_min: 2,
        page_log2_max: 3,
        queues: 16,
        stride: 2,
        timeout_500ms: 3,
        shadow: true,
        stepped: false,
        serial: "X 1=y".to_owned(),
        metadata: BlockMetadata::default(),
    };
    assert_eq!(options, expected);
    assert_eq!(parse(&all["soft:".len()..]), expected, "the prefix may be left out");
    assert!(parse("stepped,size=1MiB").stepped);
    let metadata = BlockMetadata {
        bytes: 64,
        interleaved: true,
        protection: 3,
        first: true,
        guard: GuardFormat::Bits16,
    };
    assert_eq!(parse("ms=64,mset=1,pi=3,pil=1").metadata, metadata);
}

#[test]
fn suffixes_are_binary_for_bytes_and_decimal_for_counts() {
    for (text, bytes) in
        [("512", 512), ("1k", 1 << 10), ("3M", 3 << 20), ("2gib", 2 << 30), ("1024t", 1 << 50)]
    {
        assert_eq!(parse(&format!("size={text}")).size_bytes, bytes, "{text}");
    }
    for (text, iops) in [("1", 1), ("250K", 250_000), ("3m", 3_000_000)] {
        assert_eq!(parse(&format!("iops={text}")).iops, Some(iops), "{text}");
    }
    for (text, log2) in [("0", 0), ("5", 5), ("8k", 1), ("128k", 5), ("131072", 5), ("128m", 15)] {
        assert_eq!(parse(&format!("mdts={text}")).mdts_log2, log2, "{text}");
    }
    for (text, ns) in
        [("0", 0), ("5ns", 5), ("7us", 7_000), ("1ms", 1_000_000), ("60S", 60_000_000_000)]
    {
        assert_eq!(parse(&format!("latency={text}")).latency, Duration::from_nanos(ns), "{text}");
    }
}

#[test]
fn a_path_may_hold_anything() {
    for (text, path) in [
        ("file=/a/b.img", "/a/b.img"),
        ("file=a=b", "a=b"),
        (r"file=a\,b", "a,b"),
        (r"backing=file,file=a\b\\,c,stepped", r"a\b\,c"),
        (r"stepped,file=C:\", r"C:\"),
    ] {
        let options = parse(text);
        assert_eq!(options.backing, Backing::File(path.into()), "{text}");
        assert_eq!(parse(&options.to_string()), options, "{options}");
    }
}

/// Each is refused in one line that names the option, what was seen and what is allowed.
#[test]
fn bad_input_is_refused_with_the_reason() {
    for (text, parts) in [
        ("size=0", ["size", "0", "at most 1024t"]),
        ("size=99999999T", ["size", "\"99999999T\"", "suffix k, m, g or t"]),
        ("size=18446744073709551616", ["size", "\"18446744073709551616\"", "binary"]),
        ("size=1025T", ["size", "1126999418470400", "at most 1024t"]),
        ("size=-1", ["size", "\"-1\"", "takes bytes"]),
        ("size=+1", ["size", "\"+1\"", "takes bytes"]),
        ("size=1.5G", ["size", "\"1.5G\"", "takes bytes"]),
        ("size=", ["size", "\"\"", "takes bytes"]),
        ("size", ["size", "\"size\"", "takes =VALUE"]),
        ("size=1000", ["size", "1000", "multiple of the block, lba=512"]),
        ("size=2k,lba=4096", ["size", "2048", "multiple of the block, lba=4096"]),
        ("size=1G,size=2G", ["size", "\"size=2G\"", "given once"]),
        ("lba=520", ["lba", "520", "power of two from 512 to 64k"]),
        ("lba=256", ["lba", "256", "power of two"]),
        ("lba=128k", ["lba", "131072", "power of two"]),
        ("lba=4294967808", ["lba", "4294967808", "power of two"]),
        ("mpsmin=2k", ["mpsmin", "\"2k\"", "power of two from 4k to 64k"]),
        ("mpsmax=128k", ["mpsmax", "\"128k\"", "power of two from 4k to 64k"]),
        ("mpsmin=12k", ["mpsmin", "\"12k\"", "power of two"]),
        ("mpsmin=32k,mpsmax=16k", ["mpsmin", "32768", "not above mpsmax="]),
        ("mpsmin=16k,mdts=16k", ["mdts", "16384", "MDTS counts memory pages"]),
        ("ms=12", ["ms", "12", "multiple of 8"]),
        ("ms=8k", ["ms", "8192", "at most 4096"]),
        ("ms=x", ["ms", "\"x\"", "multiple of 8"]),
        ("mset=1", ["mset", "ms=0", "beside ms="]),
        ("ms=8,mset=2", ["mset", "\"2\"", "0 or 1"]),
        ("pi=1", ["pi", "pi=1 with ms=0", "ms=8,pi=1"]),
        ("ms=8,pi=4", ["pi", "pi=4", "0 to 3"]),
        ("ms=8,pi=1,pif=2", ["pi", "ms=8", "16 with pif=2"]),
        ("ms=16,pif=2", ["pif", "pi=0", "beside pi="]),
        ("ms=16,pi=1,pif=1", ["pif", "\"1\"", "64-bit guard"]),
        ("ms=8,pil=1", ["pil", "pi=0", "beside pi="]),
        ("ms=8,backing=null", ["ms", "backing=null", "keeps no metadata"]),
        ("mdts=8k,lba=8k,ms=8,mset=1", ["mdts", "ms=8,mset=1", "one block"]),
        ("latency=80", ["latency", "\"80\"", "ns, us, ms or s"]),
        ("latency=80m", ["latency", "\"80m\"", "ns, us, ms or s"]),
        ("latency=61s", ["latency", "61s", "at most 60s"]),
        ("latency=99999999999999999999s", ["latency", "99999999999999999999s", "at most 60s"]),
        ("iops=0", ["iops", "0", "count from 1"]),
        ("iops=1g", ["iops", "\"1g\"", "decimal"]),
        ("iops=18446744073709551615m", ["iops", "18446744073709551615m", "count from 1"]),
        ("backing=disk", ["backing", "\"disk\"", "ram, null, or file"]),
        ("backing=file", ["backing", "\"file\"", "together with file=PATH"]),
        ("backing=null,file=x", ["backing", "\"null\"", "file=PATH"]),
        ("file=", ["file", "\"\"", "a path"]),
        ("file=a\nb", ["file", r"a\nb", "control characters"]),
        ("mqes=1", ["mqes", "1", "2 to 65536"]),
        ("mqes=65537", ["mqes", "65537", "2 to 65536"]),
        ("mdts=16", ["mdts", "\"16\"", "power of two from 8k"]),
        ("mdts=100k", ["mdts", "\"100k\"", "power of two"]),
        ("mdts=256m", ["mdts", "\"256m\"", "to 128m"]),
        ("mdts=1,lba=16k", ["mdts", "mdts=8k with lba=16384", "one block"]),
        ("queues=0", ["queues", "0", "1 to 65535"]),
        ("queues=65536", ["queues", "\"65536\"", "1 to 65535"]),
        ("stride=16", ["stride", "16", "0 to 15"]),
        ("timeout=0", ["timeout", "0", "multiple of 500ms"]),
        ("timeout=750ms", ["timeout", "\"750ms\"", "multiple of 500ms"]),
        ("serial=", ["serial", "\"\"", "1 to 20"]),
        ("serial=123456789012345678901", ["serial", "123456789012345678901", "1 to 20"]),
        ("serial=\u{1b}[31m", ["serial", r"\u{1b}", "printable"]),
        (r"serial=a\b", ["serial", r"a\\b", "or backslash"]),
        ("serial= x", ["serial", "\" x\"", "no space"]),
        ("stepped=1", ["stepped", "\"1\"", "stands alone"]),
        ("stepped,latency=1us", ["stepped", "latency=1us and iops=no limit", "no clock"]),
        ("stepped,iops=5", ["stepped", "latency=0s and iops=5", "no clock"]),
        ("colour=red", ["name", "\"colour\"", "there are size, lba"]),
        ("softer", ["name", "\"softer\"", "there are size"]),
        ("size=1G,,stepped", ["name", "\"\"", "between two commas"]),
        ("size=1G,", ["name", "\"\"", "between two commas"]),
        ("a\nb=c", ["name", r"a\nb", "there are size"]),
    ] {
        let error = text.parse::<SoftOptions>().expect_err(text).to_string();
        for part in parts {
            assert!(error.contains(part), "{text:?} gave {error:?}, without {part:?}");
        }
        assert!(!error.contains(char::is_control), "{error:?}");
    }
}

/// Fields are public, so a controller checks them again.
#[test]
fn start_checks_what_was_not_parsed() {
    for options in [
        SoftOptions { size_bytes: 513, ..SoftOptions::default() },
        SoftOptions { lba_bytes: 0, ..SoftOptions::default() },
        SoftOptions { mqes: 0, ..SoftOptions::default() },
        SoftOptions { mdts_log2: 255, ..SoftOptions::default() },
        SoftOptions { page_log2_min: 255, ..SoftOptions::default() },
        SoftOptions { page_log2_max: 5, ..SoftOptions::default() },
        SoftOptions { iops: Some(0), ..SoftOptions::default() },
        SoftOptions { stride: 255, ..SoftOptions::default() },
        SoftOptions { timeout_500ms: 0, ..SoftOptions::default() },
        SoftOptions { serial: "a,b".to_owned(), ..SoftOptions::default() },
        SoftOptions { latency: Duration::MAX, ..SoftOptions::default() },
        SoftOptions { stepped: true, iops: Some(1), ..SoftOptions::default() },
    ] {
        assert!(SoftController::start(options.clone()).is_err(), "{options:?} was taken");
    }
}

fn options() -> impl Strategy<Value = SoftOptions> {
    let backing = prop_oneof![
        Just(Backing::Ram),
        Just(Backing::Null),
        r"[a-z/,=\\ ]{1,12}".prop_map(|path| Backing::File(path.into())),
    ];
    let serial = r"[!-+.-\[\]-~]([ -+.-\[\]-~]{0,18}[!-+.-\[\]-~])?";
    let shape = (9u32..=16, 1u64..1 << 30, 2u32..=65_536, 4u8..=15, 1u16.., 0u8..=15);
    let timing = prop_oneof![
        Just((0, None, true)),
        (0u64..60_000_000_000, prop::option::of(1u64..1_000_000_000), Just(false)),
    ];
    let metadata = (0u16..=512, any::<bool>(), 0u8..=3, any::<bool>());
    let pages = (0u8..=4, 0u8..=4);
    (shape, timing, backing, serial, 1u8.., metadata, pages).prop_map(
        |(
            (lba_log2, blocks, mqes, mdts_log2, queues, stride),
            timing,
            backing,
            serial,
            to,
            beside,
            pages,
        )| {
            let bytes = if backing == Backing::Null { 0 } else { 8 * beside.0 };
            let protection = if bytes == 0 { 0 } else { beside.2 };
            let metadata = BlockMetadata {
                bytes,
                interleaved: bytes != 0 && beside.1 && mdts_log2 > 4,
                protection,
                first: protection != 0 && beside.3,
                guard: match protection != 0 && bytes >= 16 && beside.3 {
                    true => GuardFormat::Bits64,
                    false => GuardFormat::Bits16,
                },
            };
            SoftOptions {
                zoned: nvpoll_soft::ZonedOptions::default(),
                size_bytes: blocks << lba_log2,
                lba_bytes: 1 << lba_log2,
                latency: Duration::from_nanos(timing.0),
                iops: timing.1,
                backing,
                mqes,
                mdts_log2,
                page_log2_min: pages.0.min(pages.1).min(mdts_log2 - 1),
                page_log2_max: pages.0.max(pages.1),
                queues,
                stride,
                timeout_500ms: to,
                shadow: queues % 2 == 0,
                stepped: timing.2,
                serial,
                metadata,
            }
        },
    )
}

proptest! {
    #![proptest_config(common::cases(512))]

    #[test]
    fn text_round_trips(options in options()) {
        let text = options.to_string();
        let back: SoftOptions = text.parse().map_err(|error| TestCaseError::fail(format!("{text}: {error}")))?;
        prop_assert_eq!(&back, &options);
        prop_assert_eq!(back.to_string(), text);
    }

    #[test]
    fn no_text_panics(text in "(soft:)?[a-z0-9=,\\\\ ]{0,40}") {
        let _ = text.parse::<SoftOptions>();
    }
}
