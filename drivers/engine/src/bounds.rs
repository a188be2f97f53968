//! What a lane admits: the one check that each operation passes, and the one that a shape does.

use crate::{EngineError, Geometry, Operation, OperationKind, QueueShape};

/// Checks `shape` against what `engine`'s target can do.
///
/// # Errors
/// [`EngineError::Usage`] with what was asked for and what is possible.
pub(crate) fn check_shape(
    engine: &str,
    shape: QueueShape,
    geometry: &Geometry,
) -> Result<(), EngineError> {
    let QueueShape { worker, depth, io_bytes } = shape;
    let usage = |text: String| Err(EngineError::Usage(text));
    if io_bytes == 0 {
        return usage(format!("engine {engine}: an I/O size of 0 bytes moves nothing; set --bs"));
    }
    if !io_bytes.is_multiple_of(geometry.block_bytes) {
        return usage(format!(
            "engine {engine}: an I/O size of {io_bytes} bytes is no multiple of the target's block \
             of {} bytes; set --bs to a multiple of it",
            geometry.block_bytes
        ));
    }
    if u64::from(io_bytes) > geometry.size_bytes {
        return usage(format!(
            "engine {engine}: an I/O of {io_bytes} bytes is larger than the target of {} bytes; \
             lower --bs",
            geometry.size_bytes
        ));
    }
    if geometry.depth_max == 0 {
        return usage(format!(
            "engine {engine}: an I/O size of {io_bytes} bytes is more than it can do; lower --bs"
        ));
    }
    if depth == 0 || depth > geometry.depth_max {
        return usage(format!(
            "engine {engine}: a depth of {depth} is outside 1 to {} at {io_bytes} bytes an I/O; \
             set --iodepth within it",
            geometry.depth_max
        ));
    }
    match geometry.queues_max {
        Some(queues_max) if worker >= queues_max => usage(format!(
            "engine {engine}: worker {worker} asks for a queue, but the target has {queues_max}; \
             lower --numjobs"
        )),
        _ => Ok(()),
    }
}

/// What a lane admits, arranged so that the check is a few instructions.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// What nearly all transfers are: as long as the lane's buffers are. A length that no transfer
    /// has where there is no such transfer.
    whole_read_bytes: u64,
    whole_write_bytes: u64,
    /// Last offset of a whole transfer.
    whole_offset_max: u64,
    size_bytes: u64,
    block_mask: u64,
    read_bytes_max: u32,
    write_bytes_max: u32,
}

impl Bounds {
    /// For a lane of I/Os up to `io_bytes`; its blocks are a power of two.
    pub(crate) fn new(geometry: &Geometry, io_bytes: u32, writable: bool) -> Self {
        let read_bytes_max =
            u32::try_from(geometry.size_bytes).map_or(io_bytes, |size| size.min(io_bytes));
        let block_bytes = geometry.block_bytes.next_power_of_two();
        let is_possible = io_bytes > 0
            && io_bytes.is_multiple_of(block_bytes)
            && u64::from(io_bytes) <= geometry.size_bytes;
        let whole_bytes = if is_possible { u64::from(io_bytes) } else { u64::MAX };
        Self {
            whole_read_bytes: whole_bytes,
            whole_write_bytes: if writable { whole_bytes } else { u64::MAX },
            whole_offset_max: geometry.size_bytes.saturating_sub(io_bytes.into()),
            size_bytes: geometry.size_bytes,
            block_mask: u64::from(geometry.block_bytes.next_power_of_two()) - 1,
            read_bytes_max,
            write_bytes_max: if writable { read_bytes_max } else { 0 },
        }
    }

    /// Whether the transfer lies in the target, on whole blocks, within the lane's buffers, and is
    /// no write to a target that was opened for reading. A flush is not asked about.
    #[inline(always)]
    pub(crate) fn admits(&self, operation: &Operation) -> bool {
        let whole_bytes = match operation.kind {
            OperationKind::Write => self.whole_write_bytes,
            _ => self.whole_read_bytes,
        };
        if u64::from(operation.bytes) == whole_bytes {
            let offset = operation.offset;
            return offset <= self.whole_offset_max && offset & self.block_mask == 0;
        }
        self.admits_any(operation.kind, operation.offset, operation.bytes)
    }

    /// The same of a transfer of any length.
    #[cold]
    #[inline(never)]
    fn admits_any(&self, kind: OperationKind, offset: u64, bytes: u32) -> bool {
        let bytes_max = match kind {
            OperationKind::Write => self.write_bytes_max,
            _ => self.read_bytes_max,
        };
        // An empty transfer wraps to the largest number, so that one comparison refuses both ends.
        let fits = bytes.wrapping_sub(1) < bytes_max;
        let aligned = (offset | u64::from(bytes)) & self.block_mask == 0;
        // What fits is no larger than the target, so the difference wraps only where `fits` is
        // false already; an offset near the end of u64 is larger than any difference.
        let inside = offset <= self.size_bytes.wrapping_sub(u64::from(bytes));
        fits & aligned & inside
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const GEOMETRY: Geometry = Geometry {
        size_bytes: 1 << 20,
        block_bytes: 512,
        depth_max: 4,
        queues_max: Some(2),
        numa_node: None,
    };

    fn admits(writable: bool, kind: OperationKind, offset: u64, bytes: u32) -> bool {
        Bounds::new(&GEOMETRY, 8192, writable).admits(&Operation { kind, offset, bytes })
    }

    #[test]
    fn an_operation_is_admitted_only_inside_aligned_and_allowed() {
        let read = |offset, bytes| admits(false, OperationKind::Read, offset, bytes);
        assert!(read(0, 512) && read(512, 8192) && read((1 << 20) - 512, 512));
        assert!(!read(0, 0), "empty");
        assert!(!read(0, 8192 + 512), "larger than the buffer");
        assert!(!read(1, 512) && !read(0, 513), "off the block");
        assert!(!read(1 << 20, 512) && !read((1 << 20) - 512, 1024), "past the end");
        assert!(!read(u64::MAX - 511, 512), "the sum wraps");
        assert!(!admits(false, OperationKind::Write, 0, 512), "opened for reading");
        assert!(admits(true, OperationKind::Write, 0, 512));
    }

    #[test]
    fn a_shape_is_refused_with_what_was_asked_and_what_is_possible() {
        let check = |worker, depth, io_bytes| {
            check_shape("x", QueueShape { worker, depth, io_bytes }, &GEOMETRY)
                .err()
                .map(|error| error.to_string())
        };
        assert_eq!(check(1, 4, 4096), None);
        for (refused, word) in [
            (check(0, 0, 4096), "--iodepth"),
            (check(0, 5, 4096), "1 to 4"),
            (check(0, 1, 0), "--bs"),
            (check(0, 1, 700), "multiple"),
            (check(0, 1, 2 << 20), "larger"),
            (check(2, 1, 4096), "--numjobs"),
        ] {
            let text = refused.unwrap();
            assert!(text.contains(word), "{text}");
        }
    }
}
