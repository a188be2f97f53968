use super::*;
use crate::workload::units::Amount;
use crate::workload::{Rw, Workload};
use proptest::prelude::*;
use std::time::Duration;

fn read(text: &str) -> Result<Suite, String> {
    parse(text, Path::new("jobs.fio")).map_err(|error| error.to_string())
}

fn one(keys: &str) -> Result<Workload, String> {
    read(&format!("[job]\n{keys}\n")).map(|suite| suite.workloads[0].clone())
}

#[test]
fn a_file_as_people_write_them() {
    let suite = read(
        "; a review\n[global]\nioengine=libaio\ndirect=1\nbs = 4k   ; small\nrandrepeat=0\n\
         time_based\nruntime=30\nramp_time=5s\ngroup_reporting\nnorandommap\nthread=1\n\
         filename=/dev/nvme0n1:/dev/nvme1n1\n# reads\n[rr]\nreadwrite=randread\niodepth=32\n\n\
         [rw70]\nstonewall\nrw=randrw\nrwmixread=70\nblocksize=8K\nnumjobs=4\nsize=50%\n",
    )
    .unwrap();
    assert_eq!(suite.name, "jobs");
    assert_eq!(suite.timing.runtime, Some(Duration::from_secs(30)));
    assert_eq!(suite.timing.ramp, Some(Duration::from_secs(5)));
    let [rr, rw70] = suite.workloads.as_slice() else { panic!("{suite:?}") };
    assert_eq!((rr.name.as_str(), rr.rw, rr.bs_bytes, rr.iodepth), ("rr", Rw::RandRead, 4096, 32));
    assert_eq!((rw70.rw, rw70.bs_bytes, rw70.iodepth), (Rw::RandRw, 8192, 1));
    assert_eq!((rw70.numjobs, rw70.rwmixread, rw70.size), (4, 70, Some(Amount::Percent(50))));
    assert_ne!(rr.seed, 0, "randrepeat=0");
    let names = ["/dev/nvme0n1".to_owned(), "/dev/nvme1n1".to_owned()];
    assert_eq!(suite.filenames, [FileName { line: 13, names: names.to_vec() }]);
    let [note] = suite.notes.as_slice() else { panic!("{:?}", suite.notes) };
    assert!(note.starts_with("ioengine=libaio is not followed"), "{note}");
}

#[test]
fn a_later_global_section_holds_for_the_jobs_below_it() {
    let suite = read("[global]\nbs=4k\n[a]\nrw=read\n[global]\nbs=64k\nstonewall\n[b]\nrw=write\n");
    let sizes: Vec<u32> = suite.unwrap().workloads.iter().map(|w| w.bs_bytes).collect();
    assert_eq!(sizes, [4096, 65536]);
}

#[test]
fn suffixes_follow_kb_base_wherever_it_stands() {
    let size = |text: &str| one(&format!("rw=read\n{text}")).unwrap().size;
    for (text, bytes) in [
        ("size=1k", 1024),
        ("size=1kb", 1024),
        ("size=1KiB", 1000),
        ("size=1ki", 1000),
        ("size=2m\nkb_base=1000", 2_000_000),
        ("kb_base=1000\nsize=2MiB", 2 << 20),
        ("size=0x10k", 16 << 10),
        ("size=512b", 512),
        ("size=4096", 4096),
    ] {
        assert_eq!(size(text), Some(Amount::Bytes(bytes)), "{text}");
    }
}

#[test]
fn sizes_places_times_and_buffers() {
    let job = one("rw=randrw\nbs=4k,8k\nrandom_distribution=zipf:1.2\nthinktime=100\n\
                   thinktime_blocks=8\nrefill_buffers\nbuffer_compress_percentage=40\n\
                   offset_increment=1m")
    .unwrap();
    assert_eq!((job.bs_bytes, job.unit_bytes()), (8192, 4096));
    assert_eq!(job.bssplit.as_ref().map(ToString::to_string).as_deref(), Some("4k/100,8k/100"));
    assert_eq!(job.random_distribution.to_string(), "zipf:1.2");
    assert_eq!((job.thinktime_us, job.thinktime_blocks), (100, 8));
    assert_eq!(job.offset_increment, Amount::Bytes(1 << 20));
    assert_eq!((job.buffers.refill, job.buffers.compress_percentage), (true, 40));
    // The suffixes are fio's there, too.
    let split = one("rw=read\nbssplit=1kib/50:4k/50").unwrap().bssplit.unwrap();
    assert_eq!((split.bytes_min(), split.bytes_max()), (1000, 4096));
    assert_eq!(one("rw=read\nbs=4k,4k").unwrap().bssplit, None);
    let trims = one("rw=randtrim\nbs=4k,8k,1m").unwrap();
    assert_eq!((trims.rw, trims.bs_bytes, trims.bssplit), (Rw::RandTrim, 1 << 20, None));
}

#[test]
fn what_is_not_followed_is_an_error_with_file_line_and_key() {
    for (keys, line, what) in [
        ("rw=read\nblocksise=4k", 3, "blocksise=4k: nvpoll does not know this key"),
        ("exec_prerun=rm -rf x", 2, "exec_prerun=rm -rf x: nvpoll does not know this key"),
        ("hugepage-size", 2, "hugepage-size: this key needs a value"),
        ("direct=0", 2, "page cache"),
        ("buffered=1", 2, "page cache"),
        ("bs=4q", 2, "bs=4q: \"4q\" is no number"),
        ("bs=4k,8q", 2, "no number"),
        ("bssplit=4k/50", 2, "50 and not 100"),
        ("random_distribution=zoned_abs:50/1m:40/2m", 2, "90 and not 100"),
        ("thinktime=x", 2, "no time"),
        ("zero_buffers=2", 2, "0 or 1"),
        ("rw=trimwrite", 2, "no access pattern"),
        ("rw=randread:8", 2, "no access pattern"),
        ("rwmixread=101", 2, "0 to 100"),
        ("iodepth=99999999999", 2, "too large"),
        ("runtime=8d", 2, "at most 7 days"),
        ("directory=/tmp", 2, "name the targets"),
        ("filename=${DEVICE}", 2, "substitutes no variables"),
        ("verify=pattern", 2, "writes no pattern"),
        ("verify=null", 2, "does not check content that way"),
        ("rw=randwrite\nverify=md5\nrefill_buffers", 1, "--verify: it fills the buffers"),
        ("sync=1", 2, "sync=0 only"),
        ("loops=3", 2, "loops=1 only"),
        ("stonewall=maybe", 2, "0 or 1"),
        ("cpus_allowed=1", 2, "--cpus"),
        ("include other.fio", 2, "include other.fio: this key needs a value"),
        ("iodepth=0", 1, "--iodepth 0"),
        ("size=1m\nfilesize=2m", 1, "differ"),
        ("[x", 2, "not closed"),
        ("[]", 2, "without a name"),
    ] {
        let message = read(&format!("[job]\n{keys}\n")).unwrap_err();
        assert!(message.starts_with(&format!("jobs.fio:{line}: ")), "{keys}: {message}");
        assert!(message.contains(what), "{keys}: {message}");
    }
    assert!(read("bs=4k\n").unwrap_err().starts_with("jobs.fio:1: \"bs\" stands before"));
    assert!(read("[global]\nbs=4k\n").unwrap_err().contains("no job section"));
}

#[test]
fn jobs_at_the_same_time_and_rows_of_different_length_are_refused() {
    let message = read("[a]\nrw=read\n[b]\nrw=read\n").unwrap_err();
    assert!(message.starts_with("jobs.fio:3: job [b] would run at the same time"), "{message}");
    let message = read("[a]\nruntime=3\n[b]\nruntime=4\nstonewall\n").unwrap_err();
    assert!(message.starts_with("jobs.fio:3: job [b] has another runtime"), "{message}");
}

#[test]
fn what_fio_would_do_in_another_way_is_said() {
    let notes = |keys: &str| read(&format!("[job]\n{keys}\n")).unwrap().notes.join("; ");
    assert_eq!(notes("direct=1\ntime_based"), "");
    for (keys, what) in [
        ("time_based", "page cache"),
        ("direct=1", "time_based is missing"),
        ("numjobs=2", "share of its own"),
        ("write_bw_log=x", "no log files"),
        ("iodepth_batch_submit=8", "one batch"),
        ("gtod_reduce=1", "always measured"),
        ("hipri", "facts"),
    ] {
        assert!(notes(keys).contains(what), "{keys}: {}", notes(keys));
    }
}

proptest! {
    /// Whatever stands in a file: a suite or a message, never a panic.
    #[test]
    fn any_text_is_read_or_refused(text in "(\\[?[a-z_]{0,8}\\]?[= ;#%$0-9kKmi.:-]{0,8}\n){0,12}") {
        let _ = read(&text);
    }

    #[test]
    fn any_value_is_read_or_refused(
        key in prop::sample::select(vec!["bs", "size", "iodepth", "runtime", "rwmixread", "offset"]),
        value in "\\PC{0,12}",
    ) {
        let _ = one(&format!("{key}={value}"));
    }
}

#[test]
fn checks_of_content_are_ours() {
    let read =
        |keys: &str| read(&format!("[job]\nrw=randwrite\ndirect=1\ntime_based\n{keys}\n")).unwrap();
    for value in ["crc32c", "md5", "meta"] {
        let suite = read(&format!("verify={value}"));
        assert!(suite.workloads[0].verify, "{value}");
        let notes = suite.notes.join("; ");
        assert!(notes.contains(&format!("verify={value} is --verify here")), "{notes}");
    }
    for keys in ["verify=0", "verify=none", "verify=crc32c\nverify=0"] {
        let suite = read(keys);
        assert_eq!((suite.workloads[0].verify, suite.notes.len()), (false, 0), "{keys}");
    }
}

#[test]
fn a_colon_behind_a_backslash_belongs_to_the_name() {
    for (value, names) in [
        ("/dev/a", &["/dev/a"][..]),
        ("/dev/a:/dev/b", &["/dev/a", "/dev/b"]),
        (r"0000\:01\:00.0", &["0000:01:00.0"]),
        (r"0000\:01\:00.0:0000\:02\:00.0", &["0000:01:00.0", "0000:02:00.0"]),
        (r"C\:\disk", &[r"C:\disk"]),
        ("::/dev/a::/dev/b:", &["/dev/a", "/dev/b"]),
    ] {
        let suite =
            read(&format!("[job]\nrw=read\ndirect=1\ntime_based\nfilename={value}\n")).unwrap();
        assert_eq!(suite.filenames[0].names, names, "{value}");
    }
}

#[test]
fn a_seed_that_is_named_goes_before_randrepeat() {
    for keys in ["randseed=5", "randrepeat=1\nrandseed=5", "randseed=5\nrandrepeat=0"] {
        let suite = read(&format!("[job]\nrw=read\ndirect=1\ntime_based\n{keys}\n")).unwrap();
        assert_eq!(suite.workloads[0].seed, 5, "{keys}");
    }
}
