//! What lies on a target, seen before it is written: through the kernel's node where there is one,
//! through the userspace driver where that has the drive.

use super::subject::{Subject, What};
use crate::failure::Failure;
use nvpoll_engine::{
    Engine, EngineError, EngineKind, IoStatus, OpenOptions, Operation, OperationKind, Queue,
    QueueShape, Tag, Target, Visitor, Wait,
};
use nvpoll_host::signature::{self, Signature};
use nvpoll_host::{Drive, Host, NodeSignatures, limits::SIGNATURE_READ_BYTES};
use std::io;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

/// Longest time for all reads of one target: some 2 MiB. A drive that is slower than that could
/// not be examined.
const EXAMINE_MAX: Duration = Duration::from_secs(60);
/// Longest sleep of an engine that sleeps, between two looks at the time.
const SLEEP: Duration = Duration::from_millis(100);

/// What was found on a target.
#[derive(Debug)]
pub(super) struct Contents {
    /// Signatures in words, each with its offset and where that counts from.
    pub found: Vec<String>,
    /// What the drive itself says its serial number is, when it was asked.
    pub serial: Option<String>,
}

/// Looks at everything on `subject` that engine `kind` would write.
///
/// # Errors
/// Why it could not be seen, a clause.
pub(super) fn examine(
    host: &Host,
    kind: EngineKind,
    subject: &Subject,
    opening: &OpenOptions,
) -> Result<Contents, String> {
    match &subject.what {
        What::Drive { nsid, .. } if subject.is_bound() => {
            let target = subject.engine_target(host, kind).map_err(|failure| failure.text)?.0;
            // Blocks that were never written have no protection information that fits, and are no
            // reason to take a drive for one in use.
            let opening = OpenOptions { namespace: *nsid, unchecked: true, ..opening.clone() };
            let reading = Reading { target: &target, opening };
            let (found, serial) = kind.with(reading).map_err(|error| error.to_string())?;
            let place = |found: &Signature| format!("{found} on namespace {nsid}");
            Ok(Contents { found: found.iter().map(place).collect(), serial })
        }
        _ => in_time({
            let (host, subject) = (host.clone(), subject.clone());
            move || through_the_kernel(&host, &subject)
        }),
    }
}

/// What lies on a drive that is to be taken from the kernel, as the kernel shows it; nothing where
/// no driver shows anything.
///
/// # Errors
/// Refused, when the kernel has nodes for it and they could not be read: such a drive counts as in
/// use.
pub fn contents_of(host: &Host, drive: &Drive) -> Result<Vec<String>, Failure> {
    let (host, mine) = (host.clone(), drive.clone());
    let seen = in_time(move || {
        let nodes = host.signatures(&mine).map_err(|error| error.to_string())?;
        Ok(Contents { found: in_words(nodes), serial: None })
    });
    let Drive { address, .. } = drive;
    seen.map(|contents| contents.found).map_err(|why| {
        Failure::refused(format!(
            "{address} ({}): what lies on it could not be examined: {why}; it counts as in use, and is not taken",
            drive.label()
        ))
    })
}

fn in_words(nodes: Vec<NodeSignatures>) -> Vec<String> {
    let of_node = |NodeSignatures { node, found }: NodeSignatures| {
        found.into_iter().map(move |found| format!("{found} on {}", node.display()))
    };
    nodes.into_iter().flat_map(of_node).collect()
}

fn through_the_kernel(host: &Host, subject: &Subject) -> Result<Contents, String> {
    let nodes: Vec<NodeSignatures> = match &subject.what {
        What::Drive { drive, nsid } => {
            let nodes = host.signatures(drive).map_err(|error| error.to_string())?;
            let namespace = drive.namespaces.iter().find(|namespace| namespace.nsid == *nsid);
            if namespace.is_none_or(|namespace| namespace.node.is_none()) {
                return Err(format!("the kernel has no block device for namespace {nsid}"));
            }
            nodes
        }
        What::Block { node: path, .. } | What::File { path, .. } => {
            let found = host.node_signatures(path).map_err(|error| error.to_string())?;
            vec![NodeSignatures { node: path.clone(), found }]
        }
        What::Soft(_) | What::Null => Vec::new(),
    };
    Ok(Contents { found: in_words(nodes), serial: None })
}

/// A read of a node that hangs cannot be called off, so it has a thread of its own, which ends
/// with the process.
fn in_time(
    work: impl FnOnce() -> Result<Contents, String> + Send + 'static,
) -> Result<Contents, String> {
    let (done, waiting) = mpsc::channel();
    let started = thread::Builder::new().name("nvpoll-examine".to_owned()).spawn(move || {
        let _ = done.send(work());
    });
    started.map_err(|error| format!("no thread for it: {error}"))?;
    waiting.recv_timeout(EXAMINE_MAX).unwrap_or_else(|_| Err(too_slow()))
}

fn too_slow() -> String {
    format!("it did not deliver 2 MiB within {} s", EXAMINE_MAX.as_secs())
}

/// A look through an engine that drives the function by itself.
struct Reading<'a> {
    target: &'a Target,
    opening: OpenOptions,
}

impl Visitor for Reading<'_> {
    type Output = Result<(Vec<Signature>, Option<String>), EngineError>;

    fn visit<E: Engine>(self) -> Self::Output {
        let engine = E::open(self.target, &self.opening)?;
        let io_bytes = SIGNATURE_READ_BYTES as u32;
        let size_bytes = engine.geometry(io_bytes).size_bytes;
        let mut queue = engine.queue(QueueShape { worker: 0, depth: 1, io_bytes })?;
        let deadline = Instant::now() + EXAMINE_MAX;
        let read_at = |offset, bytes: &mut [u8]| read(&mut queue, offset, bytes, deadline);
        let found = signature::scan(read_at, size_bytes)
            .map_err(|error| EngineError::Failed(error.to_string()))?;
        let serial = engine.facts().into_iter().find(|(name, _)| *name == "serial");
        Ok((found, serial.map(|(_, value)| value)))
    }
}

/// One read, waited for.
fn read<Q: Queue>(
    queue: &mut Q,
    offset: u64,
    bytes: &mut [u8],
    deadline: Instant,
) -> io::Result<()> {
    const TAG: Tag = Tag(0);
    let failed = |error: EngineError| io::Error::other(error.to_string());
    let length = u32::try_from(bytes.len()).map_err(io::Error::other)?;
    queue.push(TAG, Operation { kind: OperationKind::Read, offset, bytes: length });
    queue.kick().map_err(failed)?;
    let mut seen: Option<IoStatus> = None;
    while seen.is_none() {
        queue.reap(Wait::Upto(SLEEP), &mut |_, status| seen = Some(status)).map_err(failed)?;
        if seen.is_none() && Instant::now() >= deadline {
            return Err(io::Error::new(io::ErrorKind::TimedOut, too_slow()));
        }
    }
    match seen {
        Some(status) if !status.is_ok() => {
            Err(io::Error::other(format!("a read at byte {offset} failed: {status}")))
        }
        _ => {
            queue.copy_out(TAG, bytes);
            Ok(())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nvpoll_engine::EngineKind;

    /// The soft drive is driven by the same driver as a real one.
    #[test]
    fn an_empty_drive_shows_nothing_and_its_serial_number() {
        let options = "size=64M,serial=S1".parse().expect("options of a soft drive");
        let target = Target::Soft(options);
        let (found, serial) = EngineKind::Soft
            .with(Reading { target: &target, opening: OpenOptions::default() })
            .unwrap();
        assert_eq!((found, serial.as_deref()), (Vec::new(), Some("S1")));
    }

    #[test]
    fn what_cannot_be_read_is_an_error_and_not_empty() {
        let options = "size=64M".parse().expect("options of a soft drive");
        let target = Target::Soft(options);
        let seen = EngineKind::Soft.with(Reading {
            target: &target,
            opening: OpenOptions { namespace: 7, ..OpenOptions::default() },
        });
        assert!(seen.is_err(), "namespace 7 is not there: {seen:?}");
    }
}
