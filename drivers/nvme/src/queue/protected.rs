//! A lane whose protection information the host makes and checks. What a read brought has to be looked at
//! before it is reported, which is no work for the hot path: there the queue looks empty, because its own
//! completion queue is one that the device does not know, and [`reap`](QueuePair::reap) takes from the real one.

use super::each::{end_command, ring_head};
use super::{DoorbellMode, QueuePair};
use crate::layout::Layout;
use crate::metadata::MetadataLane;
use crate::protect::{BlockPlaces, HostProtection};
use crate::{Namespace, ProtocolError};
use nvpoll_mem::{CompletionRing, DmaBuf};
use nvpoll_pci::Function;
use nvpoll_spec::Status;

/// Entries of a completion queue that the device does not know.
pub(super) const IDLE_ENTRIES: u32 = 2;

/// What such a lane has beside the others'.
pub(super) struct Protected {
    pub protection: HostProtection,
    /// The completion queue that the device fills.
    pub completions: CompletionRing,
}

/// What makes and checks protection information, where that is the host's work.
pub(super) fn host_protection(
    namespace: &Namespace,
    layout: &Layout,
    buffers: &DmaBuf,
    lane: Option<&MetadataLane>,
    checks: bool,
) -> Option<HostProtection> {
    let metadata = namespace.metadata.filter(|metadata| metadata.by_host)?;
    let (block_bytes, step) = (namespace.block_bytes as usize, layout.memory_bytes as usize);
    let lane = lane.and_then(|lane| Some((lane.memory()?.clone(), lane.stride)));
    let bytes = usize::from(metadata.bytes);
    let (metadata_start, metadata_step) =
        if lane.is_some() { (0, bytes) } else { (block_bytes, step) };
    let (memory, metadata_stride) = lane.unwrap_or_else(|| (buffers.clone(), layout.stride));
    let places = BlockPlaces {
        data: buffers.clone(),
        data_stride: layout.stride,
        data_step: step,
        block_bytes,
        metadata: memory,
        metadata_start,
        metadata_stride,
        metadata_step,
    };
    Some(HostProtection::new(metadata, checks, layout.tags, places))
}

impl<F: Function> QueuePair<F> {
    /// Whether protection information is made and checked by the host. Completions then come by
    /// [`reap`](Self::reap) alone, not by [`peek`](Self::peek).
    pub fn is_protected_by_host(&self) -> bool {
        self.host.is_some()
    }

    /// [`reap`](Self::reap) where the host checks what was read.
    #[cold]
    pub(super) fn reap_protected(
        &mut self,
        sink: &mut impl FnMut(u16, Status),
    ) -> Result<u32, ProtocolError> {
        let Self { host, slots, pieces, owners, qid, shadow, head, rings, .. } = self;
        let Some(host) = host.as_deref_mut() else { return Ok(0) };
        let is_each = self.doorbells == DoorbellMode::Each;
        let (mut taken, mut reported) = (false, 0);
        for _ in 0..host.completions.entries() {
            let Some(upper) = host.completions.peek() else { break };
            host.completions.advance();
            taken = true;
            if let Some((tag, status)) = end_command(slots, pieces, owners, *qid, upper)? {
                sink(tag, host.protection.end(tag, status));
                reported += 1;
            }
            if is_each {
                ring_head(shadow, head, rings, host.completions.head());
            }
        }
        if taken && !is_each {
            ring_head(shadow, head, rings, host.completions.head());
        }
        Ok(reported)
    }
}
