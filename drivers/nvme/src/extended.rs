//! Extended LBA formats: what Identify Namespace does not say of protection information (NVM Command Set
//! Specification 1.0, §4.1.5.3), and the host's word that it knows them.

use crate::metadata::Metadata;
use crate::{Controller, Namespace, NvmeError};
use nvpoll_pci::Function;
use nvpoll_spec::{Admin, Cns, FeatureId, GuardFormat, NamespaceIdentity, NvmNamespaceIdentity};

/// CTRATT bit 15 (ELBAS): there are formats with longer guards and storage tags.
const EXTENDED_FORMATS: u32 = 1 << 15;
/// Bytes of the Host Behavior Support feature, and LBAFEE among them (Base Specification 2.0, Figure 326).
const HOST_BEHAVIOR_BYTES: usize = 512;
const FORMATS_ENABLED: usize = 2;

impl<F: Function> Controller<F> {
    /// `namespace`, of whose Identify page `page` is, with the guard that its blocks have. A controller that is
    /// to use another guard than the usual one is told that the host knows it; that holds until a reset.
    ///
    /// # Errors
    /// [`NvmeError::Unsupported`] for a guard of 32 bits and for storage tags; and when the controller refuses.
    pub(crate) fn with_guard(
        &self,
        namespace: Namespace,
        page: &NamespaceIdentity,
    ) -> Result<Namespace, NvmeError> {
        let Some(metadata) = namespace.metadata.filter(|metadata| metadata.protection != 0) else {
            return Ok(namespace);
        };
        if self.identity().attributes & EXTENDED_FORMATS == 0 {
            return Ok(namespace);
        }
        let nsid = namespace.nsid;
        let name = format!("Identify ({}, NSID {nsid})", Cns::NVM_NAMESPACE);
        let extended: NvmNamespaceIdentity =
            self.read_page(&name, Admin::identify(Cns::NVM_NAMESPACE, nsid))?;
        let refuse = |reason: String| self.unsupported(format!("namespace {nsid} {reason}"));
        let format = page.format_index().and_then(|index| extended.format(index));
        let format = format.ok_or_else(|| {
            refuse(
                "uses an LBA format without an extended one; its Identify page is not valid".into(),
            )
        })?;
        if format.storage_tag_bits() != 0 {
            let bits = format.storage_tag_bits();
            return Err(refuse(format!(
                "has storage tags of {bits} bits in its protection information (ELBAF, STS); none are driven, so choose another LBA format (nvme format erases the drive)"
            )));
        }
        let guard = match format.guard_format() {
            0 => return Ok(namespace),
            2 => GuardFormat::Bits64,
            other => {
                return Err(refuse(format!(
                    "has protection information of format {other} (ELBAF, PIF; 1 is the 32-bit guard); guards of 16 and 64 bits are driven, so choose another LBA format (nvme format erases the drive)"
                )));
            }
        };
        let metadata = Metadata::with_guard(metadata, guard).map_err(refuse)?;
        self.enable_extended_formats()?;
        Ok(Namespace { metadata: Some(metadata), ..namespace })
    }

    /// Host Behavior Support, LBAFEE: without it the controller refuses I/O to such namespaces.
    fn enable_extended_formats(&self) -> Result<(), NvmeError> {
        let feature = FeatureId::HOST_BEHAVIOR;
        let mut bytes: [u8; HOST_BEHAVIOR_BYTES] =
            self.read_page(&format!("Get Features ({feature})"), Admin::get_feature(feature, 0))?;
        bytes[FORMATS_ENABLED] = 1;
        self.write_page(
            &format!("Set Features ({feature})"),
            Admin::set_feature(feature, 0),
            &bytes,
        )
    }
}
