//! Formatting a namespace through the userspace driver.

use crate::controllers::{ControllerVisitor, with_controller};
use crate::{EngineError, FormatWish, OpenOptions, Target};
use nvpoll_nvme::{Controller, NvmeError};
use nvpoll_pci::Function;
use nvpoll_spec::NamespaceIdentity;
use std::sync::Arc;

/// Which LBA format is meant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FormatChoice {
    /// The one that the namespace has.
    #[default]
    Same,
    /// The one with this index.
    Index(u8),
    /// The best (RP) of those with blocks of so many bytes, and so many bytes of metadata each.
    Blocks {
        /// Bytes of data.
        bytes: u32,
        /// Bytes of metadata.
        metadata_bytes: u16,
    },
}

impl FormatChoice {
    /// The index that is meant in `page`, or why there is none.
    fn index(self, page: &NamespaceIdentity) -> Result<u8, String> {
        let there = || {
            let count = usize::from(page.formats_z) + 1;
            page.formats.iter().take(count).enumerate().filter(|(_, format)| format.data_log2 >= 9)
        };
        let index = match self {
            Self::Index(index) => return Ok(index),
            Self::Same => page.format_index(),
            Self::Blocks { bytes, metadata_bytes } => there()
                .filter(|(_, format)| {
                    1u64.checked_shl(format.data_log2.into()) == Some(u64::from(bytes))
                        && format.metadata_bytes == metadata_bytes
                })
                .min_by_key(|(_, format)| format.performance & 3)
                .map(|(index, _)| index),
        };
        index.and_then(|index| u8::try_from(index).ok()).ok_or_else(|| {
            let list: Vec<String> = there()
                .map(|(index, format)| {
                    format!("{index}: 2^{}+{} bytes", format.data_log2, format.metadata_bytes)
                })
                .collect();
            format!("has no such LBA format; it has {}", list.join(", "))
        })
    }
}

/// What a namespace is after it was formatted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Formatted {
    /// Index of its LBA format.
    pub format: u8,
    /// Bytes in a logical block.
    pub block_bytes: u32,
    /// Logical blocks.
    pub blocks: u64,
}

/// Formats namespace `options.namespace` of the controller that `target` names. **All that is on it is
/// lost.** Leave was asked before. `choice` says which format `wish` is for.
///
/// # Errors
/// [`EngineError::Usage`] where the controller or namespace does not offer it, or it would reach other
/// namespaces; [`EngineError::Failed`] when it came to nothing.
pub fn format(
    target: &Target,
    options: &OpenOptions,
    choice: FormatChoice,
    wish: FormatWish,
) -> Result<Formatted, EngineError> {
    with_controller(target, options, Doing { nsid: options.namespace, choice, wish })
}

struct Doing {
    nsid: u32,
    choice: FormatChoice,
    wish: FormatWish,
}

impl ControllerVisitor for Doing {
    type Output = Formatted;

    fn visit<F: Function>(self, controller: &Arc<Controller<F>>) -> Result<Formatted, EngineError> {
        let failed = |error: NvmeError| match error {
            NvmeError::Limit { .. } => EngineError::Usage(error.to_string()),
            other => EngineError::Failed(other.to_string()),
        };
        let Self { nsid, choice, wish } = self;
        let page = controller.namespace_page(nsid).map_err(failed)?;
        let format = choice.index(&page).map_err(|why| {
            EngineError::Usage(format!("{}: namespace {nsid} {why}", controller.location()))
        })?;
        let namespace = controller.format(nsid, &FormatWish { format, ..wish }).map_err(failed)?;
        let (block_bytes, blocks) = (namespace.block_bytes, namespace.blocks);
        Ok(Formatted { format, block_bytes, blocks })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn soft(text: &str) -> Target {
        Target::Soft(text.parse().unwrap())
    }

    fn done(text: &str, choice: FormatChoice) -> Result<Formatted, String> {
        let options = OpenOptions::default();
        format(&soft(text), &options, choice, FormatWish::default())
            .map_err(|error| error.to_string())
    }

    #[test]
    fn a_format_is_found_by_its_blocks() {
        let blocks = |bytes, metadata_bytes| FormatChoice::Blocks { bytes, metadata_bytes };
        let formatted = Formatted { format: 0, block_bytes: 4096, blocks: 256 };
        assert_eq!(done("size=1M,lba=4096", blocks(4096, 0)), Ok(formatted));
        assert_eq!(done("size=1M,lba=4096", FormatChoice::Same), Ok(formatted));
        let error = done("size=1M,lba=4096", blocks(512, 0)).unwrap_err();
        assert!(error.contains("it has 0: 2^12+0 bytes"), "{error}");
        let error = done("size=1M", FormatChoice::Index(3));
        assert!(error.unwrap_err().contains("there is no LBA format 3"));
        let other = OpenOptions { namespace: 7, ..OpenOptions::default() };
        assert!(
            format(&soft("size=1M"), &other, FormatChoice::Same, FormatWish::default()).is_err()
        );
        assert!(
            format(
                &Target::Null,
                &OpenOptions::default(),
                FormatChoice::Same,
                FormatWish::default()
            )
            .is_err()
        );
    }
}
