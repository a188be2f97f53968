//! The driver without the benchmark: what an engine's lane costs by itself.
//!
//! Each function that is counted is `inline(never)` and named in `budgets.toml`.

use anyhow::ensure;
use nvpoll_engine::{EngineError, IoStatus, Operation, OperationKind, Queue, Tag, Wait};
use std::hint::cold_path;

/// Polls for a batch, after which a target counts as hung.
const POLLS_MAX: u64 = 1 << 32;

/// Sends a batch, each tag to a place of its own, waits for the whole of it, and sends the next: as
/// little as can be done with a driver.
///
/// Completes at least `ios` reads of `bytes`, in batches of `depth`.
///
/// # Errors
/// When the target of `size_bytes` has no room for a batch, the engine fails, an I/O does, or
/// nothing completes any more.
pub fn batches<Q: Queue>(
    queue: &mut Q,
    ios: u64,
    depth: u32,
    bytes: u32,
    size_bytes: u64,
) -> anyhow::Result<()> {
    let depth = u16::try_from(depth)?;
    let needed = u64::from(depth) * u64::from(bytes);
    ensure!(depth > 0 && needed <= size_bytes, "{depth} I/Os of {bytes} bytes do not fit");
    let failed = send_batches(queue, ios.div_ceil(depth.into()), depth, bytes)?;
    ensure!(failed == 0, "{failed} I/Os failed");
    Ok(())
}

#[inline(never)]
fn send_batches<Q: Queue>(
    queue: &mut Q,
    batches: u64,
    depth: u16,
    bytes: u32,
) -> Result<u64, EngineError> {
    let mut failed = 0;
    for _ in 0..batches {
        for tag in 0..depth {
            let offset = u64::from(bytes) * u64::from(tag);
            queue.push(Tag(tag), Operation { kind: OperationKind::Read, offset, bytes });
        }
        queue.kick()?;
        let mut left = u32::from(depth);
        let mut polls = POLLS_MAX;
        while left > 0 {
            let found = queue.reap(Wait::No, &mut |_, status: IoStatus| {
                if !status.is_ok() {
                    cold_path();
                    failed += 1;
                }
            })?;
            left = left.saturating_sub(found);
            polls -= 1;
            if polls == 0 {
                let seen = format!("{left} I/Os of a batch of {depth} never complete");
                return Err(EngineError::Failed(seen));
            }
        }
    }
    Ok(failed)
}

/// Reaps `polls` times from a queue where nothing is in flight.
///
/// # Errors
/// When the engine fails, or reports something.
#[inline(never)]
pub fn poll_in_vain<Q: Queue>(queue: &mut Q, polls: u64) -> anyhow::Result<()> {
    for _ in 0..polls {
        let found = queue.reap(Wait::No, &mut |_, _| {})?;
        ensure!(found == 0, "{found} completions of I/Os that were never sent");
    }
    Ok(())
}
