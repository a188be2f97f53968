//! What a kernel's queue carries with an I/O and gives back with its completion: the tag, and above it
//! a generation, so that a completion which comes late or twice is caught.

use crate::EngineError;

/// The generation's first bit, which the tag stands below.
pub(crate) const GENERATION: u64 = 1 << 16;

/// What engine `engine` says of a completion that matches no I/O in flight.
#[cold]
pub(crate) fn stray(engine: &str, cookie: u64, result: i64) -> EngineError {
    let (tag, generation) = (cookie & (GENERATION - 1), cookie / GENERATION);
    EngineError::Failed(format!(
        "engine {engine}: a completion of tag {tag}, generation {generation}, result {result} matches \
         no I/O in flight (late, doubled or foreign); the figures of this run cannot be trusted"
    ))
}
